// flags: -std=c++20
// Options are plain structs.
#include <ojs_shutdown.hpp>

int main() {
    ojs::lifecycle lifecycle;
    const auto installed = ojs::signals::install(lifecycle, {.reclaim = true});
    return installed ? 0 : 1;
}
