"""`.ci/mutate` tells a tested line from an untested one, on a module made up here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOY = '''
"""Nothing here is mutated: not 1 + 1."""


def doubled(x):
    """Return what the test looks at."""
    return x + x


def shown(x):
    if x is None:
        raise TypeError(f"{x + x} is a message")
    print(x)
'''
TEST = """
from toy import doubled, shown

def test_toy():
    assert doubled(3) == 6 and shown(1) is None
"""
LEFT = [  # of the untested function: the line, and what it becomes
    ("if x is None:", "if False:"),
    ('raise TypeError(f"{x + x} is a message")', "pass"),
    ("print(x)", "pass"),
]


@pytest.fixture
def mutate(tmp_path):
    """Run the script on the toy, given what it accepts: (status, what it says)."""

    def run(accepted, test=TEST):
        survivors = [{"line": a, "becomes": b, "why": "a toy"} for a, b in accepted]
        table = {"toy.py": {"tests": ["test_toy.py"], "survivors": survivors}}
        (tmp_path / "toy.py").write_text(TOY)
        (tmp_path / "test_toy.py").write_text(test)
        (tmp_path / "table.json").write_text(json.dumps(table))
        script = str(Path(__file__).with_name("mutate"))
        command = [sys.executable, script, "--table", "table.json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert not done.stderr
        return done.returncode, done.stdout

    return run


def test_survivors_are_what_no_test_looks_at_and_must_be_accepted(mutate):
    killed, unknown = ("return x + x", "return None"), ("return x", "return 2")
    status, said = mutate([*LEFT[1:], killed, unknown])
    assert "7 mutants, 7 tried, 57.1% killed, 3 left" in said and status == 1
    for line, becomes in LEFT:
        assert f"\n- {line}\n+ {becomes}\n" in f"\n{said}"
    assert said.count(": a toy\n") == 2 and said.count("NOT ACCEPTED\n- if x") == 1
    for line, becomes in (killed, unknown):
        assert f"no such mutant survives in toy.py: {line} -> {becomes}" in said


def test_a_test_that_fails_without_mutation_is_refused(mutate):
    status, said = mutate([], test=TEST.replace("6", "7"))
    assert "fail without any mutation" in said and "tried" not in said and status == 1
