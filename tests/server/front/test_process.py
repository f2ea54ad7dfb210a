"""What the process of a model tells the front."""

from pathlib import Path

from localspec.server.front.process import without_folders


def test_no_folder_of_this_machine_is_in_what_clients_get(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    for file in (folder / "a.gguf", tmp_path / "b.gguf"):
        assert without_folders(f"{file} is damaged.") == f"{file.name} is damaged."
    text = f"The draft {folder}/a.gguf does not fit '{tmp_path}/b.gguf' or {folder}/no/c.gguf."
    told = "The draft a.gguf does not fit 'b.gguf' or no/c.gguf."
    assert without_folders(text) == told
    for other in ("Ask http://x.org/a and/or /v1/models.", "", "/", "Try --models-dir /nowhere/x."):
        assert without_folders(other) == other
