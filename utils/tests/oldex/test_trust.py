"""A kept text that this installation did not sign is shown, and never run."""

import os
import secrets
import stat
import tempfile

import pytest

from utils import oldex as exercises
from utils.oldex import answer, forget, kept, progress, trust
from utils.tests.oldex.test_kept import (
    HEAD,
    OLDER,
    SOFTMAX,
    WRONG,
    assert_own,
    is_reference,
)

ATTENTION = """
def attention(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, mask)


check("1.3", attention)
"""
FOREIGN = "did not come from `check` on this computer, or was edited since"


@pytest.fixture
def loaded(monkeypatch):
    """Return the names of the exercises whose cells are run, a list that grows."""
    names, load = [], kept.load

    def noted(name, *others):
        names.append(name)
        return load(name, *others)

    monkeypatch.setattr(kept, "load", noted)
    return names


@pytest.fixture
def two(notebook, progress_folder, loaded, capsys):
    """Keep answers to 1.1 and 1.3; return their files."""
    notebook.run(SOFTMAX).run(ATTENTION)
    loaded.clear(), capsys.readouterr()
    return progress_folder / "1.1.py", progress_folder / "1.3.py"


def signature(path):
    """Return the line of a file that holds its signature."""
    (line,) = [x for x in path.read_text("utf-8").split("\n") if "# signature" in x]
    return line


def replaced(path, old, new):
    text = path.read_text("utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), "utf-8")


def linked(path, other):
    """Put a link to a file of somebody else in the place of a kept one."""
    outside = path.parents[1] / "outside.py"
    outside.write_text(OLDER)
    path.unlink()
    path.symlink_to(outside)


ATTACKS = {  # what is done to 1.1.py, with 1.3.py beside it
    "a letter of the code": lambda path, other: replaced(path, "Größe", "Grösse"),
    "a letter of the title": lambda path, other: replaced(path, ", A s", ", B s"),
    "a letter of the seal": lambda path, other: replaced(path, "is code", "is Code"),
    "a letter of who": lambda path, other: replaced(path, "`check` s", "`trust` s"),
    "a letter of the signature": lambda path, other: replaced(
        path, signature(path), signature(path)[:-1] + "0f"[signature(path)[-1] == "0"]
    ),
    "no signature": lambda path, other: replaced(path, f"{signature(path)}\n", ""),
    "the signature of another": lambda path, other: replaced(
        path, signature(path), signature(other)
    ),
    "the signature lower": lambda path, other: replaced(
        path, SOFTMAX.strip(), f"{signature(path)}\n{SOFTMAX.strip()}"
    ),
    "a line at the end": lambda path, other: path.write_text(
        path.read_text("utf-8") + "import this\n", "utf-8"
    ),
    "another exercise": lambda path, other: path.write_text(
        other.read_text("utf-8").replace("1.3", "1.1"), "utf-8"
    ),
    "an earlier version": lambda path, other: path.write_text(OLDER),
    "a link": linked,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_check_did_not_sign_is_shown_and_not_run(attack, two, loaded, capsys):
    path, other = two
    ATTACKS[attack](path, other)
    text = path.read_text("utf-8")
    reference, said = is_reference("1.1", capsys)
    first, *lines, last = said.splitlines()
    assert reference and loaded == [] and first == "1.1.py in your folder says:"
    assert [line.removeprefix("| ") for line in lines] == text.splitlines()
    assert f'answer("1.1"): the reference; 1.1.py in your folder {FOREIGN}.' in last
    assert 'call `trust("1.1")`, or `trust()` for all.' in last
    progress()
    said = capsys.readouterr().out
    assert said.startswith("Lesson 1  1.1 waiting  1.2 –        1.3 solved")
    assert "\nwaiting: kept, but not by `check` on this computer" in said
    trust("1.3")
    assert capsys.readouterr().out == "Nothing was waiting for trust.\n"
    assert loaded == [] and path.read_text("utf-8") == text
    assert_own("1.3", capsys)


def test_a_renamed_file_is_not_run(two, loaded, capsys):
    path, other = two
    os.replace(other, path)
    reference, said = is_reference("1.1", capsys)
    assert reference and loaded == [] and "not written by this course" in said
    trust()
    said = capsys.readouterr().out
    assert said.startswith("1.1 is not trusted: 1.1.py in your folder was not written")


def test_trust_shows_what_it_signs_and_answer_runs_it(two, loaded, capsys):
    path, other = two
    linked(path, other)
    replaced(
        other, "query, key, value, mask)\n\n", "query, key, value, mask)  # ok\n\n"
    )
    texts = [each.read_text("utf-8") for each in two]
    trust()
    shown = [
        f"{each.name} in your folder says:\n{kept.shown(text)}\n"
        for each, text in zip(two, texts, strict=True)
    ]
    last = "Trusted: 1.1, 1.3. From now on `answer` runs what you see above.\n"
    assert capsys.readouterr().out == "".join([*shown, last])
    assert loaded == [] and not path.is_symlink()
    assert (path.parents[1] / "outside.py").read_text() == OLDER
    assert "`trust` signed it for one computer." in path.read_text("utf-8")
    assert other.read_text("utf-8").count("# signature") == 1
    before = path.read_bytes()
    trust("1.1")
    assert capsys.readouterr().out == "Nothing was waiting for trust.\n"
    assert path.read_bytes() == before
    assert_own("1.1", capsys)
    assert_own("1.3", capsys)


def test_what_is_shown_is_what_is_signed(put, monkeypatch, capsys):
    """Another program may change the file between the reading and the signing."""
    path, sign = put(OLDER, trusted=False), kept._sign

    def late(*arguments):
        path.write_text(f"{HEAD}import this\nANSWER = this\n")
        sign(*arguments)

    monkeypatch.setattr(kept, "_sign", late)
    trust("1.1")
    assert kept.shown(OLDER) in capsys.readouterr().out
    assert "import this" not in kept.read("1.1")


def test_nothing_hides_in_what_is_shown(put, capsys):
    hidden = "x = 1  # \x1b[8m hidden \x1b[2K\u202e reversed \x0c \x08\tß"
    put(f"{HEAD}{hidden}\nTrusted: 1.1.\rimport this\nANSWER = len", trusted=False)
    answer("1.1")
    _, _, *lines, _, _ = capsys.readouterr().out.split("\n")
    escaped = r"| x = 1  # \x1b[8m hidden \x1b[2K\u202e reversed \x0c \x08" + "\tß"
    assert lines == [escaped, "| Trusted: 1.1.", "| import this", "| ANSWER = len"]


def test_what_cannot_be_trusted_costs_a_sentence(put, progress_folder, capsys):
    for content, why in (
        (HEAD + "ANSWER = 1\n" + "#" * kept.LARGEST, "is larger than 64 KiB"),
        (HEAD + "ANSWER = 1\n#".ljust(kept.LARGEST - len(HEAD)), "longer than 64 KiB"),
        (HEAD.encode() + b"ANSWER = '\xf6'", "it is not UTF-8 text"),
        ("ANSWER = len", "was not written by this course"),
    ):
        path = put(content, trusted=False)
        before = path.read_bytes()
        trust("1.1")
        said = capsys.readouterr().out
        assert said.startswith("1.1 is not trusted: ") and why in said
        assert said.endswith(".\nNothing was waiting for trust.\n")
        assert path.read_bytes() == before and said.count("\n") == 2
    put(HEAD)  # cut off in its head
    trust()
    assert capsys.readouterr().out == "Nothing was waiting for trust.\n"


def test_misuse_is_explained():
    with pytest.raises(ValueError, match="no exercise '../../x'"):
        trust("../../x")
    with pytest.raises(TypeError, match='is text: "7.1", not 7.1'):
        trust(7.1)


def test_no_trusted_answer_runs_one_that_is_not(notebook, put, loaded, capsys):
    notebook.run("""
        softmax = answer("1.1")
        def mine(q, k, v, t=1.0): return softmax(q @ k.mT / t / q.shape[-1] ** 0.5) @ v
        check("1.2", mine)
    """)
    put(OLDER, trusted=False)
    loaded.clear()
    assert_own("1.2", capsys)
    assert "1.1" not in loaded


def test_a_new_answer_replaces_one_that_waits(notebook, put, monkeypatch, capsys):
    monkeypatch.setattr(exercises, "draw", lambda *_: None)
    put(OLDER, trusted=False)
    notebook.run(WRONG)
    assert "you solved earlier" not in capsys.readouterr().out
    notebook.run(SOFTMAX)
    assert "Kept for later lessons." in capsys.readouterr().out
    assert_own("1.1", capsys)


def test_forget_deletes_what_waits(put, capsys):
    path = put(OLDER, trusted=False)
    forget()
    assert capsys.readouterr().out == "Forgotten: 1.1.\n" and not path.exists()


# --- the key ----------------------------------------------------------------------


def test_the_key_is_the_users_alone(two, key_file, progress_folder):
    assert len(key_file.read_bytes()) == 32
    assert progress_folder not in key_file.parents
    if os.name == "posix":
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    key = key_file.read_bytes().hex()
    assert not any(key in path.read_text("utf-8") for path in two)


def test_the_key_is_not_among_answers_in_the_users_own_folder(
    notebook, monkeypatch, key_file
):
    monkeypatch.delenv("COURSE_PROGRESS_DIR")
    notebook.run(SOFTMAX)
    assert [path.name for path in exercises.folder().iterdir()] == ["1.1.py"]
    assert kept._key_file() == key_file and key_file.exists()


def test_no_key_in_the_folder_of_answers(notebook, monkeypatch, key_file, capsys):
    outer = key_file.parents[1]
    link = outer / "link"
    link.symlink_to(outer)
    for chosen in key_file.parent, outer, link:
        monkeypatch.setenv("COURSE_PROGRESS_DIR", str(chosen))
        notebook.run(SOFTMAX)
        said = capsys.readouterr().out
        assert "solved" in said and "must not lie in COURSE_PROGRESS_DIR" in said
        assert not key_file.exists() and not (chosen / "1.1.py").exists()


HARM = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:31]),
    "another": lambda path: path.write_bytes(secrets.token_bytes(32)),
}


@pytest.mark.parametrize("harm", HARM)
def test_with_another_key_everything_waits(harm, two, key_file, loaded, capsys):
    HARM[harm](key_file)
    reference, said = is_reference("1.1", capsys)
    assert reference and FOREIGN in said and loaded == []
    progress()
    assert capsys.readouterr().out.count(" waiting") == 2
    trust()
    assert "Trusted: 1.1, 1.3." in capsys.readouterr().out
    assert len(key_file.read_bytes()) == 32
    assert_own("1.1", capsys)


def test_an_unreadable_key_costs_a_sentence(two, key_file, notebook, loaded, capsys):
    key_file.unlink()
    key_file.mkdir()
    path, before = two[0], two[0].read_bytes()
    reference, said = is_reference("1.1", capsys)
    why = "the key of this installation is not a file"
    assert reference and said.endswith(f"yours cannot be used: {why}.\n")
    progress()
    assert f"What is kept cannot be read: {why} (and 1 mo" in capsys.readouterr().out
    trust("1.1")
    assert f"1.1 is not trusted: {why}.\n" in capsys.readouterr().out
    assert loaded == []
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "solved earlier stays" not in said
    assert f"It is not kept: {why}." in said and path.read_bytes() == before


def test_what_the_system_refuses_costs_a_sentence(two, key_file, capsys):
    key_file.chmod(0)
    if os.access(key_file, os.R_OK):
        pytest.skip("this user may read all, as root may")
    reference, said = is_reference("1.1", capsys)
    assert reference and "the key of this installation: Permission denied" in said


@pytest.mark.parametrize("readable", [False, True])
def test_without_a_key_nothing_is_kept_unsigned(
    readable, notebook, put, progress_folder, key_file, monkeypatch, capsys
):
    make = tempfile.mkstemp

    def denied(suffix, prefix, folder):
        if folder == key_file.parent:
            raise PermissionError(13, "Permission denied", str(folder))
        return make(suffix, prefix, folder)

    monkeypatch.setattr(tempfile, "mkstemp", denied)
    if not readable:
        key_file.parent.write_text("a file where the user's data should be")
    notebook.run(SOFTMAX)
    assert "It is not kept: the key of this in" in capsys.readouterr().out
    assert not progress_folder.exists()
    path = put(OLDER, trusted=False)
    trust()
    assert "1.1 is not trusted: the key of this " in capsys.readouterr().out
    assert path.read_text() == OLDER


def test_looking_makes_no_key(put, key_file, capsys):
    put(OLDER, trusted=False)
    progress(), answer("1.1"), forget()
    assert not key_file.exists()
