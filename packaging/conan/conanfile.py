"""The recipe for Conan 2. In a checkout: conan create packaging/conan

For a collection: conandata.yml beside it, with the release's address and sum under sources and the version.
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, get, load
from conan.tools.layout import basic_layout

required_conan_version = ">=2.0"


class OjsShutdownConan(ConanFile):
    name = "ojs_shutdown"
    description = "Stops a job worker without losing work: one header, C++17, POSIX"
    license = "Apache-2.0"
    homepage = "https://openjobspec.org"
    topics = ("worker", "graceful-shutdown", "signals", "jobs", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    @property
    def _checkout(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        if not self.version:
            config = load(self, os.path.join(self._checkout, "src/ojs/base/config.hpp"))
            self.version = re.search(r'#define OJS_SHUTDOWN_VERSION "(.+)"', config).group(1)

    def export_sources(self):
        if not self.conan_data:
            for each in ["LICENSE", "ojs_shutdown.hpp", "extensions/*.hpp"]:
                copy(self, each, src=self._checkout, dst=os.path.join(self.export_sources_folder, "src"))

    def layout(self):
        basic_layout(self, src_folder="src")

    def package_id(self):
        self.info.clear()

    def validate(self):
        if self.settings.os == "Windows":
            raise ConanInvalidConfiguration(f"{self.ref} is for POSIX systems")
        check_min_cppstd(self, 17)

    def source(self):
        if self.conan_data:
            get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def package(self):
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))
        for folder in [self.source_folder, os.path.join(self.source_folder, "extensions")]:
            copy(self, "ojs_*.hpp", src=folder, dst=os.path.join(self.package_folder, "include"), keep_path=False)

    def package_info(self):
        # find_package(ojs_shutdown) and ojs_shutdown::ojs_shutdown, as from `cmake --install`: Conan's own defaults.
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        if self.settings.os in ["Linux", "FreeBSD"]:
            self.cpp_info.system_libs = ["pthread"]
