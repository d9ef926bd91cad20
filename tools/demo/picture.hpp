// Draws a shutdown as SVG, for light and dark pages: jobs as bars, heartbeats as ticks, signals as lines, phases as bands.
// It plays in real time, where the viewer moves pictures; else all of it is shown.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace picture {
// Times are seconds from the left edge.
struct band {
    std::string phase;
    std::string label;  // empty: too narrow for one
    double from = 0;
    double until = 0;
};
struct bar {
    std::size_t row = 0;
    bool done = false;  // else requeued
    double from = 0;
    double until = 0;
};
struct wait {  // of a job in the queue
    std::size_t row = 0;
    double from = 0;
    double until = 0;
};
struct tick {
    std::string state;
    double at = 0;
};
struct mark {
    std::string name;  // of the signal; empty: no signal
    std::string label;
    double at = 0;
};

struct timeline {
    std::string title;
    std::string description;
    std::vector<std::string> rows;
    std::vector<band> bands;
    std::vector<bar> bars;
    std::vector<wait> waits;
    std::vector<tick> ticks;
    std::vector<mark> marks;
    double until = 0;
};

class drawing {
  public:
    explicit drawing(const timeline& timeline) : timeline_(timeline) {}

    std::string svg() {
        // A screen reader reads the title and the description; a dark page gets the second set of colours.
        put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, ' ', height(),
            "\" role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">", text(timeline_.title),
            "</title>\n<desc id=\"desc\">", text(timeline_.description), "</desc>\n<style>\n", style, "</style>\n");
        put("<rect class=\"page\" width=\"", width, "\" height=\"", height(), "\" rx=\"6\"/>\n");
        draw_bands();
        draw_axis();
        draw_marks();
        draw_jobs();
        draw_ticks();
        draw_future();
        return out_ + "</svg>\n";
    }

  private:
    static constexpr int width = 880;
    static constexpr int left = 110;
    static constexpr int right = 14;
    static constexpr int band_top = 30;
    static constexpr int rows_top = 56;
    static constexpr int row_height = 22;
    static constexpr int bar_height = 15;
    static constexpr const char* style =
        "text{font:12px system-ui,sans-serif;fill:#1f2328}\n"
        ".page{fill:#ffffff}\n"
        ".quiet{fill:#fff3cf}\n"
        ".draining{fill:#ffe3c2}\n"
        ".stopping{fill:#cf222e}\n"
        ".running{fill:#eef2f6}\n"
        ".dim{fill:#4d5660}\n"
        ".done{fill:#1a6b30}\n"
        ".back{fill:#a04100}\n"
        ".on-bar{fill:#ffffff}\n"
        ".wait{stroke:#59636e;stroke-dasharray:2 4}\n"
        ".beat{stroke:#0550ae;stroke-width:2}\n"
        ".mark{stroke:#a40e26}\n"
        ".mark-label{fill:#a40e26;font-weight:600}\n"
        ".now{stroke:#1f2328}\n"
        ".future{animation:play linear 3}\n"
        "@keyframes play{from{transform:translateX(-772px)}60%,to{transform:none}}\n"
        "@media (prefers-reduced-motion:reduce){.future{animation:none}}\n"
        "@media (prefers-color-scheme:dark){\n"
        "text{fill:#f0f6fc}\n"
        ".page{fill:#0d1117}\n"
        ".quiet{fill:#2b2611}\n"
        ".draining{fill:#3a2712}\n"
        ".stopping{fill:#ff7b72}\n"
        ".running{fill:#181f28}\n"
        ".dim{fill:#b1bac4}\n"
        ".done{fill:#3fb950}\n"
        ".back{fill:#f0883e}\n"
        ".on-bar{fill:#0d1117}\n"
        ".wait{stroke:#9198a1}\n"
        ".beat{stroke:#79c0ff}\n"
        ".mark{stroke:#ff9a92}\n"
        ".mark-label{fill:#ff9a92}\n"
        ".now{stroke:#f0f6fc}\n"
        "}\n";

    int rows_end() const { return rows_top + row_height * static_cast<int>(timeline_.rows.size()); }
    int ticks_end() const { return rows_end() + row_height; }
    int height() const { return ticks_end() + 26; }

    void draw_bands() {
        for (const band& band : timeline_.bands) {
            put("<rect class=\"", band.phase, "\" data-phase=\"", band.phase, "\" x=\"", x(band.from), "\" y=\"",
                band_top, "\" width=\"", length(band.from, band.until), "\" height=\"", ticks_end() - band_top,
                "\"/>\n");
            if (!band.label.empty()) label(x(band.from) + " dx=\"5\"", band_top + 16, "", band.label);
        }
    }
    void draw_axis() {
        for (int second = 0; second <= timeline_.until; ++second)
            label(x(second), ticks_end() + 16, "dim", std::to_string(second) + " s");
    }
    void draw_jobs() {
        for (std::size_t i = 0; i < timeline_.rows.size(); ++i) label("8", middle(i) + 4, "row", timeline_.rows[i]);
        for (const wait& wait : timeline_.waits) {
            put("<line class=\"wait\" x1=\"", x(wait.from), "\" x2=\"", x(wait.until), "\" y1=\"", middle(wait.row),
                "\" y2=\"", middle(wait.row), "\"/>\n");
        }
        for (const bar& bar : timeline_.bars) {
            put("<rect class=\"bar ", bar.done ? "done" : "back", "\" data-job=\"", bar.row + 1, "\" x=\"", x(bar.from),
                "\" y=\"", middle(bar.row) - bar_height / 2, "\" width=\"", length(bar.from, bar.until), "\" height=\"",
                bar_height, "\" rx=\"2\"/>\n");
            label(x(bar.from) + " dx=\"5\"", middle(bar.row) + 4, "on-bar", bar.done ? "done" : "requeued");
        }
    }
    void draw_ticks() {
        label("8", rows_end() + 15, "row-of-beats", "heartbeats");
        for (const tick& tick : timeline_.ticks) {
            put("<line class=\"beat\" data-state=\"", tick.state, "\" x1=\"", x(tick.at), "\" x2=\"", x(tick.at),
                "\" y1=\"", rows_end() + 4, "\" y2=\"", ticks_end() - 4, "\"/>\n");
        }
    }
    void draw_marks() {
        for (const mark& mark : timeline_.marks) {
            put("<line class=\"mark\" data-signal=\"", mark.name, "\" x1=\"", x(mark.at), "\" x2=\"", x(mark.at),
                "\" y1=\"", band_top - 8, "\" y2=\"", ticks_end(), "\"/>\n");
            label(x(mark.at), band_top - 12, "mark-label", mark.label);
        }
    }

    // What has not happened yet is covered: a cover moves to the right in real time, rests there, and starts again, three
    // times. Without animation it lies outside of the picture.
    void draw_future() {
        constexpr int outside = width + 2;
        constexpr double moving = 0.6;  // as in `style`
        put("<g class=\"future\" style=\"animation-duration:", decimal((outside - left) / scale() / moving),
            "s\">\n<rect class=\"page\" x=\"", outside, "\" width=\"", outside - left, "\" height=\"", ticks_end() + 1,
            "\"/>\n<line class=\"now\" x1=\"", outside, "\" x2=\"", outside, "\" y1=\"", band_top, "\" y2=\"",
            ticks_end(), "\"/>\n</g>\n");
    }

    static int middle(std::size_t row) { return rows_top + row_height * static_cast<int>(row) + row_height / 2; }
    std::string x(double at) const { return decimal(left + scale() * at); }
    std::string length(double from, double until) const { return decimal(scale() * (until - from)); }
    double scale() const { return (width - left - right) / timeline_.until; }

    // `at` may end with other attributes.
    void label(const std::string& at, int y, const char* kind, const std::string& content) {
        const std::string::size_type more = at.find(' ');
        put("<text class=\"", kind, "\" x=\"", at.substr(0, more), '"',
            more == std::string::npos ? "" : at.substr(more), " y=\"", y, "\">", text(content), "</text>\n");
    }

    static std::string decimal(double value) {
        std::array<char, 32> out{};
        std::snprintf(out.data(), out.size(), "%.1f", value);
        return out.data();
    }
    static std::string text(const std::string& plain) {
        std::string out;
        for (const char c : plain) {
            if (c == '<')
                out += "&lt;";
            else if (c == '&')
                out += "&amp;";
            else
                out += c;
        }
        return out;
    }

    static std::string piece(const std::string& value) { return value; }
    static std::string piece(char value) { return std::string(1, value); }
    static std::string piece(int value) { return std::to_string(value); }
    static std::string piece(std::size_t value) { return std::to_string(value); }
    template <class... Pieces>
    void put(const Pieces&... pieces) {
        (out_.append(piece(pieces)), ...);
    }

    const timeline& timeline_;
    std::string out_;
};
}  // namespace picture
