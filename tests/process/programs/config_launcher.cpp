// A launcher of what a file says, which tells of each process once it may be given work: config_launcher FILE.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "ojs_launcher.hpp"

int main(int argc, char** argv) {
    if (argc != 2) return 64;
    std::ifstream file(argv[1]);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ojs::result<ojs::launcher_options> options = ojs::read_launcher_config(text);
    if (!options) {
        std::printf("%s\n", options.error().text.c_str());
        return 64;
    }
    options->on_routable = [](const ojs::process_info& now) {
        std::printf("ready %s %ld\n", now.id.c_str(), static_cast<long>(now.pid));
        std::fflush(stdout);
    };
    return ojs::launcher(std::move(*options)).run();
}
