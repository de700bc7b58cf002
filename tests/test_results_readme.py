"""results/README.md describes the columns that are written, and every committed campaign."""

from __future__ import annotations

from pathlib import Path

from bench.view.listing import columns_markdown

RESULTS = Path(__file__).parents[1] / "results"


def test_the_table_of_columns_is_the_code_s_own() -> None:
    """Mend with: python -c 'from bench.view.listing import columns_markdown; print(columns_markdown())'."""
    assert columns_markdown() in (RESULTS / "README.md").read_text(encoding="utf-8")


def test_every_committed_campaign_has_its_paragraph() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    campaigns = [folder.name for folder in (RESULTS / "reference").iterdir() if folder.is_dir()]
    assert campaigns
    assert [name for name in campaigns if f"`reference/{name}`" not in text] == []
