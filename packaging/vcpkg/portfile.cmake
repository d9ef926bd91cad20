# In a checkout: vcpkg install ojs-shutdown --overlay-ports=packaging/vcpkg
#
# For a collection this line becomes the call that fetches the release (vcpkg_from_github or the like, with its SHA512).
set(SOURCE_PATH "${CURRENT_PORT_DIR}/../..")

set(VCPKG_BUILD_TYPE release)  # headers: nothing to debug
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME ojs_shutdown)

file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
