# cmake -DPORT=... -DCURRENT_PORT_DIR=... -DCURRENT_INSTALLED_DIR=... -DCURRENT_PACKAGES_DIR=... -DCURRENT_BUILDTREES_DIR=...
# -P THIS: a portfile run as vcpkg runs one, with its functions reduced to what is asked of them here: one build, a release.
function(run)
    execute_process(COMMAND ${ARGV} RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "${ARGV}: ${status}")
    endif()
endfunction()

function(vcpkg_check_linkage)
    cmake_parse_arguments(PARSE_ARGV 0 arg "ONLY_STATIC_LIBRARY" "" "")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "vcpkg_check_linkage: ${arg_UNPARSED_ARGUMENTS}")
    endif()
endfunction()

function(vcpkg_cmake_configure)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
    run("${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${CURRENT_BUILDTREES_DIR}"
        "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" -DCMAKE_INSTALL_LIBDIR=lib ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
    run("${CMAKE_COMMAND}" --build "${CURRENT_BUILDTREES_DIR}" --target install)
endfunction()

# The package moves to share/, where it is one folder less deep; nothing in it may say where it was built.
function(vcpkg_cmake_config_fixup)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME;CONFIG_PATH" "")
    file(GLOB files "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*.cmake")
    foreach(file IN LISTS files)
        file(READ "${file}" text)
        string(REPLACE "${CURRENT_INSTALLED_DIR}" [[${_IMPORT_PREFIX}]] text "${text}")
        string(REPLACE [[get_filename_component(_IMPORT_PREFIX "${_IMPORT_PREFIX}" PATH)
get_filename_component(_IMPORT_PREFIX "${_IMPORT_PREFIX}" PATH)
get_filename_component(_IMPORT_PREFIX "${_IMPORT_PREFIX}" PATH)]]
            [[get_filename_component(_IMPORT_PREFIX "${_IMPORT_PREFIX}" PATH)
get_filename_component(_IMPORT_PREFIX "${_IMPORT_PREFIX}" PATH)]] text "${text}")
        get_filename_component(name "${file}" NAME)
        file(WRITE "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}/${name}" "${text}")
    endforeach()
    file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib/cmake")
endfunction()

function(vcpkg_install_copyright)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
    configure_file("${arg_FILE_LIST}" "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" COPYONLY)
endfunction()

include("${CURRENT_PORT_DIR}/portfile.cmake")
