"""changed.py: which parts of `make ci` a change needs."""

import unittest
from pathlib import Path

import changed

ROOT = Path(__file__).resolve().parents[2]


class Parts(unittest.TestCase):
    def test_a_change_of_the_main_header_runs_every_part_and_a_document_none(self):
        rows = [("src/ojs/net/url.hpp", list(changed.PARTS)), ("docs/loop.md", []), ("src/ojs/amqp/amqp.ipp", ["queues"]),
                ("src/ojs/river/river.ipp", ["adapters"]), ("tests/libraries.mk", ["queues", "adapters"]),
                ("packaging/packaging.mk", ["container", "packaging"])]  # fmt: skip
        for path, parts in rows:
            self.assertEqual(changed.parts_of(["README.md", path]), parts, path)

    def test_each_path_in_the_table_is_a_prefix_of_an_existing_file(self):
        for path in (*changed.EVERY_PART, *(path for paths in changed.PARTS.values() for path in paths)):
            self.assertTrue([*ROOT.glob(f"{path.rstrip('/')}*")], path)


if __name__ == "__main__":
    unittest.main()
