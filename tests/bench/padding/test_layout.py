"""Layouts: every layer of the source keeps its place among those that are added."""

from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.padding.layout import Layout, PaddedShape


def shape(layers: int, heads: int = 2) -> PaddedShape:
    return PaddedShape(embedding=64 * heads, heads=heads, feed_forward=96, layers=layers)


@given(layers=st.integers(1, 4), more=st.integers(0, 3))
def test_each_layer_of_the_source_stands_once_in_order(layers: int, more: int) -> None:
    layout = Layout("llama", 300, 64)
    source, padded = shape(layers), shape(layers + more, heads=3)
    places = [layout.source_layer(index, source, padded) for index in range(padded.layers)]
    assert [layer for layer in places if layer is not None] == list(range(layers))
    assert places.count(None) == more
    assert places[-1] == layers - 1


def test_only_what_lies_beside_the_sources_part_grows() -> None:
    layout = Layout("qwen2", 300, 64, key_heads=1, biases=True)
    small, large = (layout.forms(shape(6, heads)) for heads in (2, 5))
    assert small.keys() == large.keys()
    for name, form in small.items():
        grown = large[name]
        assert (form.parts, form.fill, form.silent) == (grown.parts, grown.fill, grown.silent)
        for parts, length, longer in zip(
            form.parts, form.dimensions, grown.dimensions, strict=False
        ):
            assert longer >= length and length % parts == longer % parts == 0
    silent = {name.split(".", 2)[2] for name, form in small.items() if form.silent}
    assert silent == {"attn_output.weight", "ffn_down.weight"}
