// expect: private
// flags: -DOJS_SHUTDOWN_SEPARATE=1
// No public constructor takes a type of the library's own.
#include <ojs_launcher.hpp>

int main() {
    const ojs::launcher fake(ojs::launcher_options{}, nullptr, ojs::detail::instance_starter{});
    return 0;
}
