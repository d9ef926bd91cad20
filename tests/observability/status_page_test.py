#!/usr/bin/env python3
"""The launcher's status page in a headless Chromium, from a launcher with real children. `make observability-test` runs this.
OJS_TEST_BUILD: the folder with launcher and lifecycle_runner; default build. Without chromium all of it is skipped."""

import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import BUILD, GUARD, Chromium, Launcher, Tab, eventually, runners

HAS_CHROMIUM = shutil.which("chromium") is not None
PLANTED = "<b id=planted>bold</b>"

# Every text that ever was in the page, for what is there only for a moment.
WATCH = """
window.seen = [];
new MutationObserver(() => { seen.push(document.body.innerText); })
    .observe(document.body, {childList: true, subtree: true, characterData: true});
"""
# The least contrast of any text with what is behind it (WCAG 2).
CONTRAST = """
(() => {
  const lit = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3)
        .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = of => {
    for (; of; of = of.parentElement) {
      const colour = getComputedStyle(of).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let least = 21;
  for (const each of document.querySelectorAll("body *")) {
    const own = Array.from(each.childNodes).some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !each.offsetParent) continue;
    const [one, other] = [lit(getComputedStyle(each).color), lit(behind(each))].sort();
    least = Math.min(least, (other + 0.05) / (one + 0.05));
  }
  return least;
})()
"""


class Flag(unittest.TestCase):
    def test_a_page_that_cannot_be_read_is_said_and_nothing_is_started(self):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "fleet.json"
            config.write_text(json.dumps({"process_groups": [runners("kv", 1)]}))
            run = ["run", "--config", config, "--admin", "127.0.0.1:0"]
            for words, why in (
                ([*run, "--status-page", Path(folder) / "none.html"], "none.html: it is not there"),
                (["status", "--status-page", "status.html"], "--status-page is for run"),
            ):
                done = subprocess.run([BUILD / "launcher", *words], capture_output=True, text=True, timeout=GUARD)
                self.assertEqual(done.returncode, 64)
                self.assertIn(why, done.stderr)


@unittest.skipUnless(HAS_CHROMIUM, "chromium is not installed")
class StatusPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Chromium()
        cls.addClassCleanup(cls.browser.stop)

    def launcher(self, *groups, **how):
        made = Launcher(*groups, **how)
        self.addCleanup(made.remove)
        return made

    def tab(self, launcher, **how):
        made = Tab(self.browser, **how)
        self.addCleanup(made.close)
        made.open(f"http://{launcher.address}/")
        return made

    def check_quiet(self, tab, launcher):
        """Nothing was asked of anybody else, and nothing was complained about."""
        for each in tab.events_of("Network.requestWillBeSent"):
            url = each["request"]["url"]
            self.assertTrue(url.startswith((f"http://{launcher.address}/", "data:", "about:")), url)
        self.assertEqual(tab.events_of("Runtime.exceptionThrown"), [])
        self.assertEqual([each["entry"]["text"] for each in tab.events_of("Log.entryAdded")], [])

    def test_groups_processes_phases_and_what_is_in_hand(self):
        launcher = self.launcher(
            runners("kv", 2, ["--initial-work", "7"]),
            runners("late", 1, ["--never-ready"], health_check_timeout="60s"),
        )
        tab = self.tab(launcher)
        text = tab.shows("connected", "2 of 2 ready", "0 of 1 ready", "kv-1", "kv-2", "late-1", "warming", "Changes")
        self.assertEqual(tab.value("document.title"), "(1) Launcher")
        hands = "Array.from(document.querySelectorAll('tbody tr'), r => r.cells[0].innerText + ' ' + r.cells[2].innerText)"
        eventually(lambda: {"kv-1 7", "kv-2 7"} <= set(tab.value(hands)), lambda: tab.value(hands))
        self.assertIn("min 1", text)
        self.check_quiet(tab, launcher)

    def test_a_rollout_as_it_happens(self):
        slow = runners("kv", 3, ["--behavior", "slow-drain", "--drain-duration", "700ms", "--initial-work", "7"])
        launcher = self.launcher(slow)
        tab = self.tab(launcher)
        tab.shows("3 of 3 ready")
        tab.value(WATCH)
        launcher.tool("roll", "kv", "--no-wait")
        tab.shows("Last rollout: replaced 3 of 3", "kv-6", "rollout finished")
        seen = tab.value("seen")
        middle = ("replacing", "draining", "\nreplaced 1 of 3")
        self.assertTrue(any(all(each in text for each in middle) for text in seen), seen)
        counts = [int(n) for text in seen for n in re.findall(r"\nreplaced (\d) of 3", text)]
        self.assertEqual(counts, sorted(counts))  # it only goes forward
        self.assertLessEqual({0, 1, 2}, set(counts))
        # The work in flight of a process falls while it drains, and one that has ended is shown as that.
        rows = {line.strip() for text in seen for line in text.split("\n") if line.startswith("kv-1")}
        self.assertTrue(any("draining" in row for row in rows), rows)
        self.assertTrue(any("complete" in row for row in rows), rows)
        self.check_quiet(tab, launcher)

    def test_a_rollback_says_why(self):
        launcher = self.launcher(runners("kv", 2))
        tab = self.tab(launcher)
        tab.shows("2 of 2 ready")
        launcher.write(runners("kv", 2, ["--never-ready"], health_check_timeout="1s"))
        launcher.tool("roll", "kv", status=1)
        tab.shows("Last rollout: rolled back: kv-3 was not ready within 1s")

    def test_it_says_that_the_launcher_is_gone_and_finds_the_next_one(self):
        launcher = self.launcher(runners("kv", 2))
        tab = self.tab(launcher)
        tab.shows("connected", "2 of 2 ready")
        launcher.stop()
        tab.shows("no launcher responds, retrying", "below: status of", "kv-1")
        launcher.start()  # where it was
        tab.shows("connected", "2 of 2 ready")
        self.assertEqual(tab.value("document.querySelectorAll('.stale').length"), 0)

    def test_a_token_is_asked_for_and_kept_nowhere(self):
        launcher = self.launcher(runners("kv", 2), token="s3cret-s3cret")
        tab = self.tab(launcher)
        self.assertNotIn("kv-1", tab.shows("a token is required"))
        give = "byId('token').value = %r; document.querySelector('form').requestSubmit(); ''"
        tab.value(give % "another")
        tab.shows("the token was refused")
        tab.value(give % "s3cret-s3cret")
        tab.shows("connected", "2 of 2 ready")
        kept = "[localStorage, sessionStorage, document.cookie, location.href, document.body.innerHTML]"
        self.assertNotIn("s3cret", tab.value(f"JSON.stringify({kept})"))
        self.assertEqual(tab.value("byId('token').value"), "")
        tab.send("Page.reload")
        tab.shows("a token is required")

    def test_what_processes_say_is_text(self):
        broken = runners("kv", 1)
        broken["command"] = [f"/nowhere/{PLANTED}"]
        launcher = self.launcher(broken)
        tab = self.tab(launcher)
        tab.shows("connected", PLANTED)
        self.assertIsNone(tab.value("document.getElementById('planted')"))

    def test_light_dark_and_on_a_phone(self):
        unending = {"grace_period": "5m", "max_duration": "5m", "poll_interval": "50ms", "kill_delay": "300ms"}
        launcher = self.launcher(
            runners("keyvalue-runner", 3, ["--initial-work", "12"]),
            runners("broken", 1, command=["/nowhere/a-long-path/that-does-not-break/at-any-blank/because-there-is-none"]),
            runners("slow", 2, ["--behavior", "slow-drain", "--drain-duration", "5m"], shutdown=unending),
        )
        grounds = set()
        views = {"light": {}, "dark": {"dark": True}, "phone": {"width": 360, "height": 740}}
        views["phone-dark"] = {**views["phone"], "dark": True}
        tabs = {name: self.tab(launcher, **how) for name, how in views.items()}
        for tab in tabs.values():
            tab.shows("connected", "3 of 3 ready", "2 of 2 ready")
        launcher.tool("roll", "slow", "--no-wait")
        for name, tab in tabs.items():
            with self.subTest(name):
                tab.shows("replacing", "draining")
                self.assertLessEqual(tab.value("document.documentElement.scrollWidth - innerWidth"), 0)
                self.assertGreaterEqual(tab.value(CONTRAST), 4.5)
                grounds.add((tab.value("getComputedStyle(document.body).backgroundColor"), "dark" in name))
        self.assertEqual(len(grounds), 2)


if __name__ == "__main__":
    unittest.main()
