// The program in a locale that writes 1,5: an installed one, or one that localedef makes.
#pragma once
#include <clocale>
#include <cstdlib>

#include "files.hpp"

namespace test {
class comma_locale {
  public:
    comma_locale() {
        for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"}) {
            if (std::setlocale(LC_ALL, name) != nullptr) return;
        }
        const std::string folder = scratch_.file("comma");
        if (std::system(("localedef -i de_DE -f ISO-8859-1 '" + folder + "' 2>/dev/null").c_str()) < 0) return;
        ::setenv("LOCPATH", scratch_.path().c_str(), 1);
        std::setlocale(LC_ALL, "comma");
        ::unsetenv("LOCPATH");
    }
    comma_locale(const comma_locale&) = delete;
    comma_locale& operator=(const comma_locale&) = delete;
    ~comma_locale() { std::setlocale(LC_ALL, "C"); }
    explicit operator bool() const { return *std::localeconv()->decimal_point == ','; }

  private:
    temporary_folder scratch_;
};
}  // namespace test
