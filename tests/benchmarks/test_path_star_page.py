"""The page of examples/path_star/ and what its numbers promise."""


def test_the_page_is_up_to_date(load):
    script = load("path_star_page")
    page = script.PAGE.read_text()
    assert script.pages.insert(page, script.block(script.pages.RESULTS)) == page


def test_the_head_holds_no_more_than_it_says(load):
    """Of ten million tokens, and of all 40,000 samples where the nodes are the candidates."""
    script = load("path_star_page")
    rows = script.read_rows(script.pages.RESULTS / script.RESULT)
    ours = [row for row in rows if row["contender"] == "kgfast"]
    assert {(row["vocabulary"], row["dim"]) for row in ours} == {(10_000_000, 64)}
    assert all(row["bytes"] <= 64 << 20 for row in ours if row["section"] != "generate")
    assert all(row.get("equals_dense", True) for row in ours)
    assert {row["samples"] for row in ours if row["section"] == "generate"} == {40_000}
