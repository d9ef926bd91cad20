#!/usr/bin/env python3
"""A release's archive as a subproject of Meson's, and as a module of Bazel's.

Debian's Bazel is older than modules: a WORKSPACE finds the archive, and rules_cc is the rules of Bazel itself. Of MODULE.bazel the
test reads what Bazel reads first.
"""

import ast
import os
import shutil
import unittest

from support import ARCHIVE, CXX, ROOT, SMALL, VERSION, Outside, run

CC = ["cc_binary", "cc_import", "cc_library", "cc_test", "cc_toolchain", "cc_toolchain_alias", "cc_toolchain_suite"]
# rules_java: Bazel's own toolchains load it.
WORKSPACE = """\
local_repository(name = "ojs_shutdown", path = "subprojects/ojs_shutdown")
local_repository(name = "rules_cc", path = "rules_cc")
local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
"""
PROGRAM = 'cc_binary(name = "app", srcs = ["worker.cpp"], copts = ["-std=c++17"], deps = ["@ojs_shutdown//:extensions"])\n'


class Subproject(Outside):
    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def setUp(self):
        super().setUp()
        shutil.unpack_archive(ARCHIVE, self.folder / "subprojects")
        (self.folder / f"subprojects/ojs_shutdown-{VERSION}").rename(self.folder / "subprojects/ojs_shutdown")
        self.write("worker.cpp", '#include "ojs_spool.hpp"\n#include <ojs_shutdown.hpp>\n' + SMALL)


class Meson(Subproject):
    NEEDS = ["meson"]

    def test_meson_builds_a_program_that_depends_on_the_subproject(self):
        self.write("meson.build", "project('user', 'cpp', default_options: 'cpp_std=c++17')\n"
                   "executable('app', 'worker.cpp', dependencies: dependency('ojs_shutdown'))\n")
        run("meson", "setup", "out", cwd=self.folder, env={**os.environ, "CXX": CXX})
        self.assertIn("-pthread", run("ninja", "-C", "out", "-v", cwd=self.folder))
        self.assert_works(self.folder / "out/app")


class Bazel(Subproject):
    NEEDS = ["bazel"]

    def test_bazel_builds_a_program_that_depends_on_the_extensions(self):
        self.write("WORKSPACE", WORKSPACE)
        self.write("BUILD.bazel", PROGRAM)
        self.write("subprojects/ojs_shutdown/WORKSPACE", "")
        self.write("rules_cc/WORKSPACE", "")
        self.write("rules_cc/cc/BUILD.bazel", "")
        self.write("rules_cc/cc/defs.bzl", "".join(f"{rule} = native.{rule}\n" for rule in CC))
        # --batch: no server stays.
        run("bazel", "--batch", f"--output_user_root={self.folder}/out", "build", "app", cwd=self.folder,
            env={**os.environ, "CC": CXX})
        self.assertIn("-pthread", (self.folder / "bazel-bin/app-2.params").read_text())
        self.assert_works(self.folder / "bazel-bin/app")

    def test_module_bazel_has_the_version_of_the_header(self):
        module, _ = ast.parse((ROOT / "MODULE.bazel").read_text()).body
        self.assertEqual({each.arg: each.value.value for each in module.value.keywords},
                         {"name": "ojs_shutdown", "version": VERSION})


if __name__ == "__main__":
    unittest.main()
