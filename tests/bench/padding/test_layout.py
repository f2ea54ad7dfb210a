"""Layouts: every layer of the source keeps its kind and place among those that are added."""

from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.padding.layout import Layout, PaddedShape


def shape(layers: int, heads: int = 2) -> PaddedShape:
    return PaddedShape(embedding=64 * heads, heads=heads, feed_forward=96, layers=layers)


def kind(layout: Layout, sizes: PaddedShape, index: int) -> set[str]:
    """The names of a layer's tensors, which tell delta nets, attention and heads apart."""
    start = f"blk.{index}."
    return {name.removeprefix(start) for name in layout.forms(sizes) if name.startswith(start)}


@given(
    period=st.integers(1, 4),
    periods=st.integers(1, 3),
    more=st.integers(0, 3),
    nextn=st.integers(0, 2),
)
def test_each_layer_of_the_source_stands_once_in_order_and_keeps_its_kind(
    period: int, periods: int, more: int, nextn: int
) -> None:
    layout = Layout("qwen35", 300, 64, period, 4, nextn)
    source, padded = shape(period * periods), shape(period * (periods + more), heads=3)
    places = {
        index: layout.source_layer(index, source, padded) for index in range(padded.layers + nextn)
    }
    own = {index: layer for index, layer in places.items() if layer is not None}
    assert list(own.values()) == list(range(source.layers + nextn))
    for index, layer in own.items():
        assert kind(layout, padded, index) == kind(layout, source, layer)
    added = [index for index in places if index not in own]
    assert len(added) == period * more
    assert own[padded.layers - 1] == source.layers - 1


def test_only_what_lies_beside_the_sources_part_grows() -> None:
    layout = Layout("qwen35", 300, 64, 3, 4, 1)
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
    assert silent == {"attn_output.weight", "ssm_out.weight", "ffn_down.weight"}
