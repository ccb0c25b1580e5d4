"""What an error says of a name that is not there."""

from penstock.errors import hint


def test_the_nearest_name_is_offered_whatever_its_case() -> None:
    assert hint("ofset", ["offset", "body"]) == "did you mean offset?"
    assert hint("MAXoffset", ["maxOffsets", "path"]) == "did you mean maxOffsets?"
    assert hint("tagg", ["tag", "key"], show=repr) == "did you mean 'tag'?"


def test_a_name_in_the_wrong_section_is_found_by_its_last_part() -> None:
    assert hint("node.durability", ["topic.durability", "node.recovery"]) == "did you mean topic.durability?"


def test_where_nothing_is_near_there_is_the_way_out_or_all_of_them() -> None:
    assert hint("zzzz", ["a", "b"]) == "there are a, b"
    assert hint("zzzz", ["a", "b"], "make it first") == "make it first"
    assert hint("", [], "make it first") == "make it first"
