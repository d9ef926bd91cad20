// flags: -Itests/compile/no_picojson
// The library includes no JSON library: here picojson cannot be included.
#include <ojs_shutdown.hpp>

ojs::result<std::string> name_in(std::string_view json) {
    return ojs::json_view(json).member("name").string();
}
