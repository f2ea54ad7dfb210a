"""The types of keyword arguments are those of the table of options."""

from scripts import write_option_types


def test_the_file_is_written_from_the_tables() -> None:
    assert write_option_types.FILE.read_text(encoding="utf-8") == write_option_types.text()
