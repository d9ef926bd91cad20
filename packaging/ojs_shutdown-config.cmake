# The CMake package, installed as it is: find_package(ojs_shutdown), or with what extensions link,
# find_package(ojs_shutdown COMPONENTS tls river). CMakeLists.txt includes it with the headers of the source tree.
#
# All targets but one are imported, so that a project can export libraries that link them. The definitions of
# ojs_shutdown::separate are compiled in the project that links them, with its own flags.
include(CMakeFindDependencyMacro)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_dependency(Threads)
if("tls" IN_LIST ojs_shutdown_FIND_COMPONENTS)
    find_dependency(OpenSSL)
endif()
if("river" IN_LIST ojs_shutdown_FIND_COMPONENTS)
    find_dependency(PostgreSQL)
endif()
if(TARGET ojs_shutdown::ojs_shutdown)
    return()  # found before, in another folder of the project
endif()

if(NOT ojs_shutdown_INCLUDE_DIR)
    get_filename_component(ojs_shutdown_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../../include" ABSOLUTE)
endif()
add_library(ojs_shutdown::ojs_shutdown INTERFACE IMPORTED GLOBAL)
target_include_directories(ojs_shutdown::ojs_shutdown INTERFACE "${ojs_shutdown_INCLUDE_DIR}")
target_compile_features(ojs_shutdown::ojs_shutdown INTERFACE cxx_std_17)
target_link_libraries(ojs_shutdown::ojs_shutdown INTERFACE Threads::Threads)

# Each extension: a target that links what it needs. Those that need no other library are compiled into `separate`.
set(ojs_shutdown_definitions "#define OJS_SHUTDOWN_IMPLEMENTATION 1\n#include <ojs_shutdown.hpp>\n")
foreach(extension IN ITEMS server ops memory spool events process coordinator launcher ledger client tls river amqp redis_streams stop_token)
    add_library(ojs_shutdown::${extension} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(ojs_shutdown::${extension} INTERFACE ojs_shutdown::ojs_shutdown)
    if(extension STREQUAL "tls")
        target_link_libraries(ojs_shutdown::tls INTERFACE OpenSSL::SSL OpenSSL::Crypto)
    elseif(extension STREQUAL "river")
        target_link_libraries(ojs_shutdown::river INTERFACE PostgreSQL::PostgreSQL)
    elseif(extension STREQUAL "amqp")
        target_link_libraries(ojs_shutdown::amqp INTERFACE rabbitmq)
    elseif(extension STREQUAL "redis_streams")
        target_link_libraries(ojs_shutdown::redis_streams INTERFACE hiredis)
    elseif(extension STREQUAL "stop_token")
        target_compile_features(ojs_shutdown::stop_token INTERFACE cxx_std_20)
    else()
        string(APPEND ojs_shutdown_definitions "#include <ojs_${extension}.hpp>\n")
    endif()
endforeach()

file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/ojs_shutdown_separate.cpp" CONTENT "${ojs_shutdown_definitions}")
add_library(ojs_shutdown_separate STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_BINARY_DIR}/ojs_shutdown_separate.cpp")
set_target_properties(ojs_shutdown_separate PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(ojs_shutdown_separate PUBLIC OJS_SHUTDOWN_SEPARATE=1)
target_link_libraries(ojs_shutdown_separate PUBLIC ojs_shutdown::ojs_shutdown)
add_library(ojs_shutdown::separate INTERFACE IMPORTED GLOBAL)
target_link_libraries(ojs_shutdown::separate INTERFACE ojs_shutdown_separate)
