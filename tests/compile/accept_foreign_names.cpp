// Names the library uses inside its namespace may exist outside of it too.
struct error {};
struct signals {};
struct worker {};
struct job {};
namespace detail {
struct wake {};
}  // namespace detail

#include <ojs_shutdown.hpp>

int main() {
    const error one{};
    const signals two{};
    const worker three{};
    const job four{};
    const detail::wake five{};
    static_cast<void>(one);
    static_cast<void>(two);
    static_cast<void>(three);
    static_cast<void>(four);
    static_cast<void>(five);
    return 0;
}
