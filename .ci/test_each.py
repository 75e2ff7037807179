"""A failed check of a notebook is told and counted, and no notebook is left out."""

import each
import house


def test_every_notebook_is_checked_and_one_failure_counts(capsys):
    notebooks = sorted((house.ROOT / "notebooks").rglob("*.ipynb"))
    notebooks = [path for path in notebooks if ".ipynb_checkpoints" not in path.parts]
    checked = []
    assert not each.check_each(checked.append, [])
    assert sorted(checked) == notebooks != []

    def check(path):
        if path == notebooks[0]:
            raise RuntimeError("in the cell")

    capsys.readouterr()
    assert each.check_each(check, [])
    said = capsys.readouterr().out
    assert said.count("FAILED: RuntimeError: in the cell") == 1
    assert said.count(" passed") == len(notebooks) - 1
    assert said.count(" begins ") == len(notebooks)
