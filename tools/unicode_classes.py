"""Write src/data/tokenizer/pretok_table.h: the letters and numbers of Unicode as ranges.

The sets are those that the `tokenizers` package matches with \\p{L} and \\p{N}, asked for every code
point, because ids must be the same as the package's; its Unicode version is that of the table.

    python tools/unicode_classes.py > src/data/tokenizer/pretok_table.h
"""

from tokenizers import Regex, pre_tokenizers


def ranges(expression):
    split = pre_tokenizers.Split(Regex(expression), "removed")
    out = []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000 or split.pre_tokenize_str(chr(code)):
            continue
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def table(name, rows):
    print(f"static const ls_pretok_range {name}[] = {{")
    line = "   "
    for first, last in rows:
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


print("""/* pretok_table.h -- the letters and the numbers of Unicode, as ranges.
 *
 * Made by tools/unicode_classes.py; do not edit. */
#pragma once
#include "data/tokenizer/pretok_impl.h"

/* clang-format off */""")
table("letter_ranges", ranges(r"\p{L}"))
table("number_ranges", ranges(r"\p{N}"))
print("/* clang-format on */")
