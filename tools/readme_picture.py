#!/usr/bin/env python3
"""Draw the picture of README.md: one real terminal session of lineshaft.

    python3 tools/readme_picture.py [PROGRAM] [OUTPUT]      # ./lineshaft docs/img/demo.svg

The script runs `lineshaft train` (the demonstration, about a minute) and `lineshaft generate` in
a pseudo terminal of 100 columns, inside a temporary folder. It draws the captured text, with the
loss curve from events.jsonl beside it, as an SVG that looks the same on light and dark pages.
Lines that the picture leaves out are marked with an ellipsis. The standard library is enough.

`--keep DIR` keeps the captured bytes and the run in DIR; with an existing capture there, the
script only draws again.
"""
import fcntl
import html
import json
import os
import pty
import re
import struct
import sys
import tempfile
import termios

COLS = 100
CHAR, LINE = 7.8, 18.0  # width and height of a cell at 13 px
LEFT, TOP, BAR = 20.0, 16.0, 34.0  # margins inside the window, height of its title bar
GENERATE = ["generate", "runs/demo", "--prompt", "The little fox", "--temperature", "0.5", "--seed", "3"]

FRAME, GROUND, INK, DIM = "#30363d", "#0d1117", "#d5dde6", "#7d8894"
GREEN, BLUE, AMBER = "#5fd38a", "#6cb6ff", "#e3b341"


def capture(program, arguments, folder):
    """Run the program in a terminal of COLS columns and return every byte that it prints."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ["TERM"] = "xterm-256color"
        os.execv(program, [program] + arguments)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLS, 0, 0))
    out = []
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:  # Linux reports EIO when the other side is gone
            break
        if not piece:
            break
        out.append(piece)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        sys.exit("%s %s failed" % (program, " ".join(arguments)))
    return b"".join(out)


def lines_of(raw):
    """Play the bytes on a terminal: a list of lines of (character, bold). The progress line, which
    the program erases before it prints something else, becomes a line of its own."""
    lines, row, column, bold, last = [], [], 0, False, ""
    for match in re.finditer(r"\x1b\[([0-9;]*)([A-Za-z])|(.)", raw.decode("utf-8", "replace"), re.S):
        code, kind, char = match.groups()
        if kind == "K":
            row = row[:column]
        elif kind == "m":
            bold = code == "1"
        elif char == "\r":
            text = "".join(c for c, _ in row)
            if text.startswith("["):
                last = text
            column = 0
        elif char == "\n":
            if last and row:
                lines.append([(c, False) for c in last])
                last = ""
            lines.append(row)
            row, column = [], 0
        elif char is not None:
            row = row[:column] + [(char, bold)] + row[column + 1:]
            column += 1
    if row:
        lines.append(row)
    return lines


def text_of(line):
    return "".join(c for c, _ in line)


def folded(line, width=COLS):
    """Break a line where the terminal would."""
    return [line[i:i + width] for i in range(0, max(len(line), 1), width)]


def samples(lines):
    """Split into what stands before the first text sample, the samples, and what comes behind."""
    marks = [i for i, line in enumerate(lines) if text_of(line).startswith("--- after step")]
    ends = [next(j for j in range(i + 1, len(lines)) if text_of(lines[j]) == "---") for i in marks]
    return lines[:marks[0]], [lines[i:j + 1] for i, j in zip(marks, ends)], lines[ends[-1] + 1:]


def plain(text):
    return [(c, False) for c in text]


def chosen(train, generate):
    """The lines of the picture, each with a colour."""
    head, blocks, tail = samples(lines_of(train))
    progress = [line for line in lines_of(train) if text_of(line).startswith("[")]
    picture = [(plain("$ ./lineshaft train"), GREEN)]
    ledger = next(i for i, line in enumerate(head) if text_of(line) == "memory")
    total = next(i for i, line in enumerate(head) if text_of(line).startswith("  total"))
    picture += [(line, INK) for line in head[:ledger + 1]]
    picture += [(plain("  ... %d lines, one for each kind" % (total - ledger - 1)), DIM), (head[total], INK)]
    for block in (blocks[0], blocks[-1]):
        if block is blocks[-1]:
            picture += [(progress[len(progress) // 2], AMBER), (plain("..."), DIM)]
        picture += [(part, INK) for line in block for part in folded(line)]
    picture += [(line, INK) for line in tail if text_of(line).strip() and not text_of(line).startswith("[")]
    picture.append(([], INK))
    command = " ".join('"%s"' % word if " " in word else word for word in GENERATE)
    picture.append((plain("$ ./lineshaft " + command), GREEN))
    told = [part for line in lines_of(generate) for part in folded(line)]
    speed = told.pop() if told and "of prompt" in text_of(told[-1]) else None
    picture += [(line, INK) for line in told[:4]]
    if speed is not None:
        picture.append((speed, DIM))
    return picture


def row_svg(line, y, colour):
    """One line of text; runs of bold characters become a span of their own. Each run gets its
    exact width, so that columns stay aligned whatever fixed font a reader has."""
    runs = []
    for column, (char, bold) in enumerate(line):
        char = char if char.isprintable() else "."
        if not runs or runs[-1][2] != bold:
            runs.append([column, "", bold])
        runs[-1][1] += char
    out = []
    for column, text, bold in runs:
        text = text.rstrip()
        if not text:
            continue
        start = len(text) - len(text.lstrip())
        text = text.lstrip()
        out.append('<text x="%.1f" y="%.1f" fill="%s"%s textLength="%.1f" lengthAdjust="spacingAndGlyphs">%s</text>' % (
            LEFT + (column + start) * CHAR, y, "#ffffff" if bold else colour,
            ' font-weight="bold"' if bold else "", len(text) * CHAR,
            html.escape(text).replace("  ", " &#160;")))
    return out


def curve_svg(events, x, y, width, height):
    """Training loss (thin), its mean over 25 steps, and the validation loss (dots)."""
    loss, held = [], []
    with open(events, encoding="utf-8") as file:
        for entry in map(json.loads, file):
            if entry["event"] == "step":
                loss.append((entry["step"], entry["loss"]))
            elif entry["event"] == "eval":
                held.append((entry["step"], entry["val_loss"]))
    steps, top = loss[-1][0], 6.0
    place = lambda s, v: "%.1f,%.1f" % (x + width * s / steps, y + height * (1 - v / top))
    mean = [(loss[i][0], sum(v for _, v in loss[max(0, i - 24):i + 1]) / min(i + 1, 25)) for i in range(0, len(loss), 8)]
    out = ['<g font-size="11">']
    for value in (0, 2, 4, 6):
        level = y + height * (1 - value / top)
        out.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>' % (x, level, x + width, level, FRAME))
        out.append('<text x="%.1f" y="%.1f" fill="%s" text-anchor="end">%d</text>' % (x - 6, level + 4, DIM, value))
    for step in (0, steps // 2, steps):
        out.append('<text x="%.1f" y="%.1f" fill="%s" text-anchor="middle">%d</text>' % (
            x + width * step / steps, y + height + 15, DIM, step))
    out.append('<polyline points="%s" fill="none" stroke="%s" stroke-opacity="0.35"/>' % (
        " ".join(place(s, v) for s, v in loss[::2]), BLUE))
    out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>' % (
        " ".join(place(s, v) for s, v in mean), BLUE))
    for step, value in held:
        cx, cy = place(step, value).split(",")
        out.append('<circle cx="%s" cy="%s" r="3" fill="%s"/>' % (cx, cy, AMBER))
    for label, colour, dy in (("training loss", BLUE, 30), ("validation loss", AMBER, 47)):
        out.append('<text x="%.1f" y="%.1f" fill="%s" text-anchor="end">%s</text>' % (x + width, y + dy, colour, label))
    out.append("</g>")
    return out


def draw(picture, events):
    width = 2 * LEFT + COLS * CHAR
    height = BAR + 2 * TOP + len(picture) * LINE
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" '
        'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="13" '
        'role="img" aria-label="lineshaft trains a small GPT in a terminal, then generates text">' % (width, height, width, height),
        '<rect x="0.5" y="0.5" width="%.1f" height="%.1f" rx="10" fill="%s" stroke="%s"/>' % (width - 1, height - 1, GROUND, FRAME),
        '<line x1="0.5" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>' % (BAR, width - 0.5, BAR, FRAME),
    ]
    for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        out.append('<circle cx="%.1f" cy="%.1f" r="5.5" fill="%s"/>' % (LEFT + 18 * number, BAR / 2, colour))
    out.append('<text x="%.1f" y="%.1f" fill="%s" text-anchor="middle" font-size="12">lineshaft</text>' % (width / 2, BAR / 2 + 4, DIM))
    for number, (line, colour) in enumerate(picture):
        out += row_svg(line, BAR + TOP + number * LINE + 13, colour)
    out += curve_svg(events, LEFT + 67 * CHAR, BAR + TOP + 6, 33 * CHAR - 4, 9.0 * LINE)
    return "\n".join(out + ["</svg>", ""])


def main():
    arguments = sys.argv[1:]
    keep = None
    if "--keep" in arguments:
        place = arguments.index("--keep")
        keep = arguments[place + 1]
        del arguments[place:place + 2]
    program = os.path.abspath(arguments[0] if arguments else "lineshaft")
    target = arguments[1] if len(arguments) > 1 else "docs/img/demo.svg"
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or temporary
        os.makedirs(folder, exist_ok=True)
        raw = os.path.join(folder, "train.raw")
        if not os.path.exists(raw):
            with open(raw, "wb") as file:
                file.write(capture(program, ["train"], folder))
        with open(raw, "rb") as file:
            train = file.read()
        picture = chosen(train, capture(program, GENERATE, folder))
        svg = draw(picture, os.path.join(folder, "runs", "demo", "events.jsonl"))
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    with open(target, "w", encoding="utf-8") as file:
        file.write(svg)
    print("%s: %d lines, %d bytes" % (target, len(picture), len(svg.encode())))


if __name__ == "__main__":
    main()
