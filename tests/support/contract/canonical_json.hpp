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
    std::string_view member(const std::string& name) {
        if (!is_next('{')) return {};
        do {
            blanks();
            const std::string key = string();
            take(':');
            blanks();
            const std::string_view before = rest_;
            value();
            if (ok_ && key == '"' + name + '"') return before.substr(0, before.size() - rest_.size());
        } while (ok_ && is_next(','));
        return {};
    }

  private:
    std::string value() {
        blanks();
        if (rest_.empty()) return fault();
        switch (rest_.front()) {
            case '{': return object();
            case '[': return array();
            case '"': return string();
            case 't': return word("true");
            case 'f': return word("false");
            case 'n': return word("null");
            default: return number();
        }
    }
    std::string object() {
        std::map<std::string, std::string> members;
        take('{');
        if (!is_next('}')) {
            do {
                blanks();
                const std::string key = string();
                take(':');
                members[key] = value();
            } while (ok_ && is_next(','));
            take('}');
        }
        std::string out = "{";
        for (const auto& [key, member] : members) out += (out.size() > 1 ? "," : "") + key + ":" + member;
        return out + "}";
    }
    std::string array() {
        std::string out = "[";
        take('[');
        if (!is_next(']')) {
            do {
                out += (out.size() > 1 ? "," : "") + value();
            } while (ok_ && is_next(','));
            take(']');
        }
        return out + "]";
    }
    std::string string() {
        std::string out = "\"";
        if (!start('"')) return fault();
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
        static const std::string_view to = "\b\f\n\r\t\"\\/";
        if (from.find(c) != from.npos) return std::string(1, to[from.find(c)]);
        if (c != 'u') return fault();
        unsigned long code = four_digits();
        if (code >= 0xd800 && code < 0xdc00 && rest_.substr(0, 2) == "\\u") {
            rest_.remove_prefix(2);
            code = 0x10000 + ((code - 0xd800) << 10) + (four_digits() - 0xdc00);
        }
        return utf8(code);
    }
    unsigned long four_digits() {
        const std::string digits(rest_.substr(0, 4));
        if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) {
            fault();
            return 0;
        }
        rest_.remove_prefix(4);
        return std::strtoul(digits.c_str(), nullptr, 16);
    }
    static std::string utf8(unsigned long code) {
        const auto byte = [](unsigned long bits) { return static_cast<char>(bits); };
        if (code < 0x80) return {byte(code)};
        if (code < 0x800) return {byte(0xc0 | code >> 6), byte(0x80 | (code & 0x3f))};
        if (code < 0x10000)
            return {byte(0xe0 | code >> 12), byte(0x80 | (code >> 6 & 0x3f)), byte(0x80 | (code & 0x3f))};
        return {byte(0xf0 | code >> 18), byte(0x80 | (code >> 12 & 0x3f)), byte(0x80 | (code >> 6 & 0x3f)),
                byte(0x80 | (code & 0x3f))};
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
        while (digits.back() == '0') {
            digits.pop_back();
            ++exponent;
        }
        return (minus ? "-" : "") + digits + "e" + std::to_string(exponent);
    }
    std::string run_of_digits() {
        const std::string out(rest_.substr(0, std::min(rest_.find_first_not_of("0123456789"), rest_.size())));
        rest_.remove_prefix(out.size());
        return out;
    }
    std::string word(std::string_view wanted) {
        if (rest_.substr(0, wanted.size()) != wanted) return fault();
        rest_.remove_prefix(wanted.size());
        return std::string(wanted);
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
    return std::string(json_canonicalizer(object).member(name));
}

inline bool same_json(std::string_view one, std::string_view other) {
    const std::string wanted = canonical_json(other);
    return !wanted.empty() && canonical_json(one) == wanted;
}

}  // namespace transport_contract
