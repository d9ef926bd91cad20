// expect: nodiscard
#include <ojs_shutdown.hpp>

int main() {
    ojs::lifecycle lifecycle;
    ojs::signals::install(lifecycle);
}
