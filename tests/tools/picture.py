"""Looks whether a picture that build/demo --svg drew is whole and readable: python3 picture.py FILE

Prints what is wrong with it, or how many bars, requeued jobs, ticks and signals it has.
"""

import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

MAX_BYTES = 20_000
BACKGROUNDS = ("page", "running", "quiet", "draining")
# What is over what, and the least contrast: texts on any background, shapes on any, texts on bars.
PAIRS = [(over, under, 4.5) for over in ("text", "dim", "mark-label") for under in BACKGROUNDS]
PAIRS += [(over, under, 3.0) for over in ("done", "back", "wait", "beat", "mark") for under in BACKGROUNDS]
PAIRS += [("on-bar", bar, 4.5) for bar in ("done", "back")]


def luminance(colour):
    def linear(value):
        value /= 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """As WCAG 2 defines it, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def contrast_faults(style):
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    of = {}
    for scheme, rules in (("light", light), ("dark", dark)):  # a dark page gets the other colours of a light one
        of |= re.findall(r"(?m)^\.?([\w-]+)\{[^}]*?(?:fill|stroke):(#[0-9a-f]{6})", rules)
        for over, under, least in PAIRS:
            if (got := contrast(of[over], of[under])) < least:
                yield f"{over} on {under}, {scheme}: contrast {got:.2f}, less than {least}"


def text_of(root, tag):
    return "".join(each.text for each in root.iter("{http://www.w3.org/2000/svg}" + tag) if each.text)


class Picture:
    def __init__(self, path):
        self.bytes = Path(path).read_bytes()
        self.root = xml.fromstring(self.bytes)
        self.bars = [each for each in self.root.iter() if "bar" in each.get("class", "").split()]
        self.back = [each for each in self.bars if "back" in each.get("class").split()]
        self.rows, self.ticks, self.signals, self.bands = (
            self.root.findall(f".//*[@{each}]") for each in ("class='row'", "class='beat'", "data-signal!=''", "data-phase"))
        self.description = text_of(self.root, "desc")

    def faults(self):
        if len(self.bytes) >= MAX_BYTES:
            yield f"{len(self.bytes)} bytes"
        if not text_of(self.root, "title") or self.root.get("aria-labelledby") != "title desc":
            yield "no title that a reading program finds"
        yield from (*self.faults_of_jobs(), *self.faults_of_times(), *self.faults_of_motion())
        yield from contrast_faults(text_of(self.root, "style"))

    def faults_of_jobs(self):
        said = re.match(r"(\d+) jobs in (\d+) runs\.", self.description)
        if not said or (int(said[1]), int(said[2])) != (len(self.rows), len(self.bars)):
            yield f"{len(self.rows)} rows and {len(self.bars)} bars, which is not what it says: {self.description}"
        for job in range(1, len(self.rows) + 1):
            runs = sorted((each for each in self.bars if each.get("data-job") == str(job)), key=left)
            if not runs or runs[-1] in self.back or any(each not in self.back for each in runs[:-1]):
                yield f"job {job} is not requeued until it is done"
            if any(left(later) < right(run) for run, later in zip(runs, runs[1:])):
                yield f"two runs of job {job} overlap"

    def faults_of_times(self):
        phases = [each.get("data-phase") for each in self.bands]
        if phases != ["running", "quiet", "draining", "stopping", "running"]:
            yield f"the phases are {phases}"
        # Widths and places are rounded to a tenth.
        if any(left(later) < right(band) - 0.2 for band, later in zip(self.bands, self.bands[1:])):
            yield "phases overlap"
        if [each.get("data-signal") for each in self.signals] != ["SIGTSTP", "SIGTERM"]:
            yield "the signals are not SIGTSTP and SIGTERM"
        for signal, band in zip(self.signals, self.bands[1:3]):
            if abs(left(signal) - left(band)) > 0.2:
                yield f"{band.get('data-phase')} does not begin with its signal"
        states = [each.get("data-state") for each in self.ticks]
        if not re.fullmatch("(running )+(quiet )+terminate (running )+", " ".join([*states, ""])):
            yield f"the heartbeats are {states}"

    def faults_of_motion(self):
        """A viewer that moves nothing shows all of it; the others show it in real time."""
        (group,) = self.root.findall(".//*[@class='future']")
        hidden = float(self.root.get("viewBox").split()[2])
        if any(left(shape) <= hidden for shape in group):
            yield "a part is covered where nothing moves"
        style = text_of(self.root, "style")
        if "@media (prefers-reduced-motion:reduce){.future{animation:none}}" not in style:
            yield "it moves for those who do not want that"
        distance, percent = map(int, re.search(r"from\{transform:translateX\(-(\d+)px\)\}(\d+)%", style).groups())
        seconds = float(re.search(r"animation-duration:([\d.]+)s", group.get("style"))[1]) * percent / 100
        at = {each.text: left(each) for each in self.root.findall(".//*[@class='dim']")}
        if abs(distance / seconds - (at["1 s"] - at["0 s"])) > 2:
            yield f"it plays {distance} units in {seconds} s"

    def begun_in_shutdown(self):
        return [each for each in self.bars if left(self.bands[1]) < left(each) < right(self.bands[3])]


def left(shape):
    return float(shape.get("x") or shape.get("x1"))


def right(shape):
    return left(shape) + float(shape.get("width"))


def main():
    picture = Picture(sys.argv[1])
    faults = list(picture.faults())
    print("\n".join(faults))
    counts = {"bars": picture.bars, "back": picture.back, "ticks": picture.ticks, "signals": picture.signals}
    print(" ".join(f"{name}={len(found)}" for name, found in counts.items()))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
