// launcher run.
#include "../config_file.hpp"
#include "launcher.hpp"

namespace launcher_program {
namespace {
ojs::result<ojs::launcher_options> read_config(const std::string& file) {
    const ojs::result<std::string> text = config_file::read_file(file);
    if (!text) return text.error();
    ojs::result<ojs::launcher_options> read = ojs::read_launcher_config(*text);
    if (!read) return ojs::error{read.error().code, 0, file + ": " + read.error().text};
    return read;
}

// From the current content of the file.
ojs::result<ojs::group_options> read_group(const std::string& file, const std::string& name) {
    const ojs::result<ojs::launcher_options> read = read_config(file);
    if (!read) return read.error();
    for (const ojs::group_options& each : read->groups) {
        if (each.name == name) return each;
    }
    return ojs::error{ojs::errc::invalid_argument, 0, file + " no longer has the group " + name};
}
}  // namespace

ojs::result<std::string> read_token(const std::string& file) {
    if (file.empty()) return std::string();
    ojs::result<std::string> text = config_file::read_file(file);
    if (!text) return text;
    text->erase(text->find_last_not_of(" \t\r\n") + 1);
    if (text->empty()) return config_file::wrong_usage(file + " is empty: no token");
    return text;
}

int run_launcher(const settings& given) {
    ojs::result<ojs::launcher_options> options = read_config(given.config);
    if (!options) return ojs::report_startup_error(options.error());
    const ojs::result<std::string> token = read_token(given.token_file);
    if (!token) return ojs::report_startup_error(token.error());
    if (!given.admin.empty()) options->admin_address = given.admin;
    if (options->admin_address.empty()) {
        const ojs::result<std::string> address = default_address();
        if (!address) return ojs::report_startup_error(address.error());
        options->admin_address = *address;
    }
    if (!given.status_page.empty()) {
        ojs::result<std::string> page = config_file::read_file(given.status_page);
        if (!page) return ojs::report_startup_error(page.error());
        options->status_page = std::move(*page);
    }
    options->admin_token = *token;
    options->reload = [file = given.config](const std::string& name) { return read_group(file, name); };
    return ojs::launcher(*options).run();
}
}  // namespace launcher_program
