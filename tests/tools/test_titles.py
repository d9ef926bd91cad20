"""The title of each C++ test begins with the unit under test, has a verb, and states a fact: "spool: a full disk loses no job"."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MACRO = re.compile(r'TEST_CASE(?:_\w+)?\((?:\s*[\w:]+,)?\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
UNIT = re.compile(r"[a-z][\w.:<>()-]*(?: [\w.:<>()-]+){0,2}: \S")
MAX_LENGTH = 110

# Present tense, as titles use it. A new verb is added here.
VERBS = frozenset("""
aborts accept accepts act add agree announces appear appears applies apply are arrives becomes begins belong blocks
calls can cancels cannot carries carry cause causes change changes chooses claims closes completes consults contain
contains continue continues count counts covers creates cuts decide decides delays derives destroy destroys dies
distinguishes do does doubles drains drives end ends enforces escalates escapes exceed exits fail fails finds finish
finishes fits follow follows forces frees get gets give gives go goes grows hands harms has have holds identify
inherits inspects interrupts is keep keeps kills lasts leak leave leaves lets limits list lists logs lose loses lowers
makes match may means misses moves must names need needs notifies obeys opens overrides parses pass passes pauses
places polls prevents prints prove proves queries quiets quote raises reach reaches reads receives reduces refuses
regains releases repeats replaces report reports requests requeues responds restarts restores resumes return returns
run runs say says sees send sends serves set sets settles share shortens shows signals start starts states stay stays
stops succeeds survives take takes tells unblocks use uses visits wait waits wakes warns wins work works write writes
yields
""".split())

VAGUE = re.compile(r"\b[Ww]hat\b|, (?:whatever|however|whenever|wherever)\b|\bone that\b|\bnobody\b|[:>] [Oo]f (?:many|several|those)\b")


def titles():
    for path in sorted((ROOT / "tests").rglob("*.?pp")):
        for literals in MACRO.findall(path.read_text()):
            yield path, "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))


def fault_of(title):
    statement = title.partition(": ")[2]
    if not UNIT.match(title):
        return "does not begin with its unit"
    if not VERBS & set(re.findall(r"[\w-]+", statement)):
        return "has no verb that this test knows"
    if found := VAGUE.search(title):
        return f"is vague: {found[0].strip()}"
    return f"has more than {MAX_LENGTH} characters" if len(title) > MAX_LENGTH else ""


class Titles(unittest.TestCase):
    def test_each_has_a_unit_and_a_verb(self):
        found = list(titles())
        self.assertGreater(len(found), 1000)
        faults = [f"{path.name}: {title}: {fault}" for path, title in found if (fault := fault_of(title))]
        self.assertEqual([], faults, "\n" + "\n".join(faults))

    def test_faults_are_found(self):
        for title in ("A full disk loses no job", "spool: a full disk", "spool: what is lost is logged", "spool: a job is lost, whatever ends it",
                      "spool: it is one that is lost", "spool: is " + "x" * MAX_LENGTH):  # fmt: skip
            self.assertTrue(fault_of(title), title)
        self.assertEqual("", fault_of("spool: a full disk loses no job"))


if __name__ == "__main__":
    unittest.main()
