// Compares two JSON texts, with every digit of their numbers. Independent of the library's reader, which transports use.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace transport_contract {

// Writes a text in one form: members sorted, no blanks, strings as UTF-8, numbers as digits and exponent.
class json_canonicalizer {
  public:
    explicit json_canonicalizer(std::string_view text) : rest_(text) {}

    // Empty: not JSON.
    std::string all() {
        std::string out = value();
        blanks();
        return ok_ && rest_.empty() ? out : std::string();
    }

    // The source text of a member of an object; empty: none.
    std::string member(const std::string& name) {
        std::string found;
        if (!is_next('{')) return found;
        items('}', [&] {
            const std::string key = string();
            take(':');
            blanks();
            const std::string_view before = rest_;
            value();
            if (found.empty() && key == '"' + name + '"')
                found = before.substr(0, before.size() - rest_.size());
        });
        return ok_ ? found : std::string();
    }

  private:
    std::string value() {
        if (is_next('{')) return object();
        if (is_next('[')) return array();
        if (!rest_.empty() && rest_.front() == '"') return string();
        for (const std::string_view word : {"true", "false", "null"}) {
            if (rest_.substr(0, word.size()) != word) continue;
            rest_.remove_prefix(word.size());
            return std::string(word);
        }
        return number();
    }
    template <class Item>
    void items(char close, Item item) {
        if (is_next(close)) return;
        do item();
        while (ok_ && is_next(','));
        take(close);
    }
    std::string object() {
        std::map<std::string, std::string> members;
        items('}', [&] {
            const std::string key = string();
            take(':');
            members[key] = value();
        });
        std::string out = "{";
        for (const auto& [key, member] : members) out += (out.size() > 1 ? "," : "") + key + ":" + member;
        return out + "}";
    }
    std::string array() {
        std::string out = "[";
        items(']', [&] { out += (out.size() > 1 ? "," : "") + value(); });
        return out + "]";
    }
    std::string string() {
        std::string out = "\"";
        take('"');
        while (!rest_.empty() && rest_.front() != '"') {
            const char c = step();
            out += c == '\\' ? escape() : c == '\0' ? fault() : std::string(1, c);
        }
        if (!start('"')) return fault();
        return out + '"';
    }
    std::string escape() {
        if (rest_.empty()) return fault();
        const char c = step();
        static const std::string_view from = "bfnrt\"\\/";
        if (from.find(c) != from.npos) return std::string(1, "\b\f\n\r\t\"\\/"[from.find(c)]);
        if (c != 'u') return fault();
        unsigned long code = four_digits();
        if (code >= 0xd800 && code < 0xdc00 && rest_.substr(0, 2) == "\\u") {
            rest_.remove_prefix(2);
            code = 0x10000 + ((code - 0xd800) << 10) + (four_digits() - 0xdc00);
        }
        if (code < 0x80) return std::string(1, static_cast<char>(code));
        unsigned long more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // bytes of UTF-8 after the first
        std::string out(1, static_cast<char>(0xffUL << (7 - more) | code >> 6 * more));
        while (more-- > 0) out += static_cast<char>(0x80 | (code >> 6 * more & 0x3f));
        return out;
    }
    unsigned long four_digits() {
        const std::string digits(rest_.substr(0, 4));
        rest_.remove_prefix(digits.size());
        if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) fault();
        return std::strtoul(digits.c_str(), nullptr, 16);
    }
    // 1.50, 15e-1 and 1.5 are the same: 15 and -1.
    std::string number() {
        const bool minus = start('-');
        std::string digits = run_of_digits();
        if (digits.empty()) return fault();
        long exponent = 0;
        if (start('.')) {
            const std::string fraction = run_of_digits();
            exponent -= static_cast<long>(fraction.size());
            digits += fraction;
        }
        if (start('e') || start('E')) {
            const bool down = start('-');
            if (!down) start('+');
            const long by = std::strtol(run_of_digits().c_str(), nullptr, 10);
            exponent += down ? -by : by;
        }
        digits.erase(0, digits.find_first_not_of('0'));
        if (digits.empty()) return "0";
        for (; digits.back() == '0'; ++exponent) digits.pop_back();
        return (minus ? "-" : "") + digits + "e" + std::to_string(exponent);
    }
    std::string run_of_digits() {
        const std::string out(rest_.substr(0, rest_.find_first_not_of("0123456789")));
        rest_.remove_prefix(out.size());
        return out;
    }

    char step() {
        const char c = rest_.front();
        rest_.remove_prefix(1);
        return c;
    }
    bool start(char wanted) {
        const bool there = !rest_.empty() && rest_.front() == wanted;
        if (there) rest_.remove_prefix(1);
        return there;
    }
    bool is_next(char wanted) {
        blanks();
        return start(wanted);
    }
    void take(char wanted) {
        if (!is_next(wanted)) fault();
    }
    void blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
    std::string fault() {
        ok_ = false;
        rest_ = {};
        return {};
    }

    std::string_view rest_;
    bool ok_ = true;
};

inline std::string canonical_json(std::string_view text) {
    return json_canonicalizer(text).all();
}

inline std::string json_member(std::string_view object, const std::string& name) {
    return json_canonicalizer(object).member(name);
}

inline bool same_json(std::string_view one, std::string_view other) {
    const std::string wanted = canonical_json(other);
    return !wanted.empty() && canonical_json(one) == wanted;
}

}  // namespace transport_contract
