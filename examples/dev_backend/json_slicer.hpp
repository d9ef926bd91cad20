// json_slicer: the source texts of the parts of JSON.
#pragma once
#include <picojson.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dev_backend {

// Cuts JSON that is known to be valid into the source texts of its parts, for what must come back digit for digit:
// picojson holds numbers as doubles.
class json_slicer {
  public:
    using members = std::vector<std::pair<std::string_view, std::string_view>>;

    static members object_members(std::string_view object);
    static std::vector<std::string_view> array_elements(std::string_view array);
    // The object with that member in place of any of its name; an empty `value` only takes those away.
    static std::string with(std::string_view object, std::string_view key, std::string_view value);
    // Empty if there is no such member; of several the last, as picojson has it.
    static std::string_view find(const members& all, std::string_view key);
    // The same for a member known to be there: its key may be written with escapes.
    static std::string source(std::string_view object, const char* key, const picojson::value& parsed);

  private:
    explicit json_slicer(std::string_view text) : rest_(text) {}

    void skip_blanks();
    bool take(char wanted);
    std::string_view value();
    std::size_t value_length() const;
    std::size_t string_length(std::size_t start) const;

    std::string_view rest_;
};

}  // namespace dev_backend
