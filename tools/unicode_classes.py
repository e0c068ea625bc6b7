"""Write src/data/tokenizer/pretokenizer_table.h: the letters and numbers of Unicode as run lengths.

The sets are those that the `tokenizers` package matches with \\p{L} and \\p{N}, asked for every code
point, because ids must be the same as the package's; its Unicode version is that of the table.

    python tools/unicode_classes.py > src/data/tokenizer/pretokenizer_table.h
"""

from tokenizers import Regex, pre_tokenizers


def runs(expression):
    """Lengths of the runs of characters that are outside and inside the set, in turn from U+0000 on."""
    split = pre_tokenizers.Split(Regex(expression), "removed")
    out = [0]
    for code in range(0x110000):
        inside = not (0xD800 <= code < 0xE000 or split.pre_tokenize_str(chr(code)))
        if inside != (len(out) % 2 == 0):
            out.append(0)
        out[-1] += 1
    return out[:-1]  # the last run lies outside


def table(name, lengths):
    print(f"static const uint16_t {name}[] = {{")
    line = "   "
    for length in lengths:
        item = f" {length},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


print("""/* pretokenizer_table.h -- the letters and the numbers of Unicode, as lengths of runs of code points:
 * outside the set, inside it, and so on in turn from U+0000. Letters begin with 65, 26, 6, 26: none
 * below 'A', the 26 capitals, 6 others, the 26 small ones.
 *
 * Made by tools/unicode_classes.py; do not edit. */
#pragma once
#include <stdint.h>

/* clang-format off */""")
table("letter_runs", runs(r"\p{L}"))
table("number_runs", runs(r"\p{N}"))
print("/* clang-format on */")
