# cmake -DPORT=... -DCURRENT_PORT_DIR=... -DCURRENT_INSTALLED_DIR=... -DCURRENT_PACKAGES_DIR=... -DCURRENT_BUILDTREES_DIR=...
# -P THIS: a portfile run as vcpkg runs one, with its functions reduced to what is asked of them here: one build, a release.
function(run)
    execute_process(COMMAND ${ARGV} RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "${ARGV}: ${status}")
    endif()
endfunction()

function(vcpkg_cmake_configure)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
    run("${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${CURRENT_BUILDTREES_DIR}"
        "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
    run("${CMAKE_COMMAND}" --build "${CURRENT_BUILDTREES_DIR}" --target install)
endfunction()

# The package is in its place, and no file of it names a folder of the build.
function(vcpkg_cmake_config_fixup)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME" "")
    if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}/${arg_PACKAGE_NAME}-config.cmake")
        message(FATAL_ERROR "no CMake package in share/${arg_PACKAGE_NAME}")
    endif()
endfunction()

function(vcpkg_install_copyright)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
    configure_file("${arg_FILE_LIST}" "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" COPYONLY)
endfunction()

include("${CURRENT_PORT_DIR}/portfile.cmake")
