"""The template interpreter against jinja2 with the settings of transformers.

Usage: template.py RENDER [SHARED_DATA]

RENDER is build/test/conformance-render. Renders Qwen2.5's own template (where SHARED_DATA has it), the built-in
formats, and a template per construct over many conversations, and compares every character.
"""
import itertools
import json
import os
import random
import subprocess
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template


class Renderer:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, template, context):
        line = json.dumps({"template": template, "context": context}, ensure_ascii=False)
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


# Contexts that constructs are tried on: each has what templates usually get.
CONTEXTS = [
    {"messages": [{"role": "user", "content": "Hi"}], "n": 3, "x": None, "s": "a b  c", "t": True, "f": 1.5},
    {"messages": [{"role": "system", "content": " S\n"}, {"role": "user", "content": "Grüße, \U0001f600 „x“"},
                  {"role": "assistant", "content": "<think>a</think>b"}],
     "n": -7, "x": "", "s": "Straße\tIT'S \"q\" \u00a0z\u2003", "t": False, "f": 1e22,
     "d": {"b": 1, "a": [1, 2.0, None, True, {"k": "v\"\\\n\u0001é\U0001f600"}], "C": "x", "empty": {}, "none": []}},
    {"messages": [], "n": 0, "s": "", "t": 1, "f": -0.00001234, "d": {}, "q": [3, 1, 2], "w": ["b", "A", "c", "B"],
     "p": [{"name": "b", "v": 2, "on": True}, {"name": "a", "v": 1}, {"name": "c", "v": 3, "on": False}]},
]

CONSTRUCTS = r'''
{{ s }}|{{ n }}|{{ x }}|{{ t }}|{{ f }}|{{ missing }}
{{ d }}|{{ [1, 'a', "it's", none, true, 1.0, (1,), (1, 2), {'k': [s]}] }}
{{ s | tojson }}{{ d | tojson }}{{ d | tojson(indent=2) }}{{ [] | tojson(indent=4) }}{{ f | tojson }}{{ [x, t, n] | tojson }}
{{ d | tojson(ensure_ascii=true) }}{{ d | tojson(sort_keys=true) }}{{ d | tojson(separators=(',', ':')) }}
{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s.strip('aSz') }}|{{ s | trim }}|{{ s | trim('a') }}
{{ s.split() }}{{ s.split(' ') }}{{ s.split('a', 1) }}{{ s.split(none, 1) }}{{ s.rsplit(' ', 1) }}{{ 'a\nb\r\nc'.splitlines() }}
{{ s.upper() }}{{ s.lower() }}{{ s.title() }}{{ s.capitalize() }}{{ s | upper }}{{ s | lower }}{{ s | title }}{{ s | capitalize }}
{{ s.replace('a', 'xx') }}{{ s.replace('', '-') }}{{ s | replace(' ', '_') }}{{ s.replace('t', 'T', 1) }}
{{ s.startswith('a') }}{{ s.endswith('c') }}{{ s.startswith(('x', 'S')) }}{{ s.find('b') }}{{ s.rfind(' ') }}{{ s.count(' ') }}
{{ s[0] }}{{ s[-1] }}{{ s[1:3] }}{{ s[::-1] }}{{ s[::2] }}{{ s[-3:] }}{{ s[:-2] }}{{ s[5:1:-1] }}{{ s[99:] }}|{{ s[99] }}
{{ messages[::-1] | length }}{{ messages[1:] | length }}{{ messages[-1:] }}{{ messages | length }}{{ s | length }}{{ d | length }}
{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 % 3 }}{{ -7 % 3 }}{{ 7 / 2 }}{{ 2 ** 10 }}{{ 1.5 + n }}{{ n - 1 }}{{ -n }}{{ n * 2 }}{{ 'ab' * 3 }}{{ 7.5 // 2 }}{{ -7.5 % 2 }}
{{ 1e16 }}|{{ 123456789012345680.0 }}|{{ 0.1 + 0.2 }}|{{ 1e-5 }}|{{ 100.0 }}|{{ 1.0e5 }}|{{ 0.0001 }}|{{ 3.14 }}
{{ n ~ s ~ x ~ t ~ none ~ missing }}
{{ 'yes' if n > 0 else 'no' }}{{ 'a' if t }}{{ ('b' if x else 'c') if n else 'd' }}
{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 'a' in s }}{{ 'zz' not in s }}{{ 'b' in d }}{{ 3 in [1, 2, 3] }}{{ 'x' == s }}{{ 1 == 1.0 }}{{ true == 1 }}{{ none == missing }}
{{ not t and n or 'z' }}{{ n and s }}{{ (x or 'dflt') }}{{ not (n == 3) }}
{{ x is defined }}{{ missing is defined }}{{ x is none }}{{ s is string }}{{ d is mapping }}{{ messages is iterable }}{{ messages is sequence }}{{ t is true }}{{ t is false }}{{ t is boolean }}{{ n is number }}{{ f is float }}{{ n is integer }}{{ d is iterable }}{{ s is sequence }}{{ n is iterable }}{{ missing is iterable }}{{ n is not none }}
{{ n is odd }}{{ n is even }}{{ n is divisibleby 3 }}{{ n is eq 3 }}{{ n is ge(0) }}{{ s is lower }}{{ 'AB' is upper }}{{ n is in [3] }}{{ missing is undefined }}{{ none is none }}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ m.role }}{{ m['content'] }}{% else %}none{% endfor %}
{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m.role }}{% else %}nobody{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for k, v in d | items %}{{ k }}{% endfor %}{% for k, v in d | dictsort %}{{ k }}{% endfor %}
{{ d.get('a') }}{{ d.get('zz') }}{{ d.get('zz', 5) }}{{ d.keys() | list }}{{ d.values() | list }}{{ d['a'] }}{{ d.C }}{{ d['zz'] }}{{ d.zz is defined }}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ range(3) | list }}{{ range(5, 0, -2) | list }}
{% set a = 1 %}{% for i in range(2) %}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}{% if true %}{% set a = 9 %}{% endif %}{{ a }}
{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.n }}{{ ns.other is defined }}
{% macro show(m, last, sep='-') %}{{ m }}{{ sep }}{{ last }}{{ last is defined }}{% endmacro %}{{ show(1) }}{{ show(1, 2) }}{{ show(m=3, last=4) }}{{ show('a', last='b') | upper }}{% macro bad(a=1, b) %}{% endmacro %}
{% macro show(m, last, sep='-') %}{{ m }}{{ sep }}{{ last }}{{ last is defined }}{% endmacro %}{{ show(1) }}{{ show(1, 2) }}{{ show(m=3, last=4) }}{{ show('a', last='b') | upper }}
{% macro outer(x) %}[{{ x }}{{ n }}{{ caller() if caller else '' }}]{% endmacro %}{{ outer(1) }}{% call outer(2) %}body{{ n }}{% endcall %}
{% macro rec(k) %}{{ k }}{% if k > 0 %}{{ rec(k - 1) }}{% endif %}{% endmacro %}{{ rec(4) }}
{% set block %}  x{{ n }}  {% endset %}[{{ block }}]{% set up | upper %}abc{% endset %}{{ up }}{% filter upper %}q{{ s }}{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}
{{ q | sort }}{{ q | sort(reverse=true) }}{{ w | sort }}{{ w | sort(case_sensitive=true) }}{{ w | unique | list }}{{ q | max }}{{ q | min }}{{ q | join(', ') }}{{ q | reverse | list }}{{ s | reverse }}{{ q | first }}{{ q | last }}{{ messages | first }}
{{ p | map(attribute='name') | join('+') }}{{ p | map(attribute='on', default='?') | list }}{{ w | map('upper') | list }}{{ w | map('replace', 'b', 'X') | list }}{{ p | selectattr('on') | map(attribute='name') | list }}{{ p | rejectattr('on', 'defined') | list }}{{ p | selectattr('v', 'gt', 1) | list | length }}{{ q | select('odd') | list }}{{ q | reject('eq', 3) | list }}
{{ p | selectattr('name', 'equalto', 'a') | first }}{{ p | sort(attribute='v') | map(attribute='v') | list }}{{ messages | selectattr('role', '==', 'user') | list | length }}
{{ missing | default('D') }}{{ x | default('D') }}{{ x | default('D', true) }}{{ '' | d('E', boolean=True) }}{{ s | default }}
{{ '42' | int }}{{ '4.9' | int }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ 3.99 | int }}{{ '2.5' | float }}{{ n | string }}{{ n | abs }}{{ 'a,b' | list }}{{ true | int }}
{{ {'a': 1}.a }}{{ {'a': {'b': 2}}['a']['b'] }}{{ [1, [2, 3]][1][0] }}{{ (1, 2)[1] }}{{ {'items': 5}['items'] }}{{ [1] + [2] }}{{ dict(a=1, b='c') }}
{{ "a\tb\n\x41\u00e9\\ \' \"" }}{{ 'a' "b" 'c' }}{{ '\d' }}
{{ 'line\nline2' | indent }}|{{ 'line\n\nline2' | indent(2, true) }}|{{ 'a\nb' | indent(width=3, first=false) }}
{{ '{% raw %}' }}{% raw %}{{ not }} {% x %}{% endraw %}{# a comment {{ x }} #}!
{%- if n -%}  a  {%- elif s -%} b {%- else -%} c {%- endif -%} d
{% if n %}a{% elif s %}b{% else %}c{% endif %}{% if not messages %}e{% endif %}
{% set a, b = 1, n %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% for (u, v) in [(1, 2), (3, 4)] %}{{ u }}{{ v }}{% endfor %}
{{ s is string and n is number or x is none }}{{ n if n is not none else 'z' }}{{ messages[0].role if messages else 'no' }}{{ messages and messages[0]['role'] == 'user' }}
{% if messages and messages[0].role == 'system' %}{% set sys = messages[0].content %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{{ sys is defined }}{{ loop_messages | length }}
{{ (s.split(' ') | last) }}{{ s.split(' ')[-1].strip() }}{{ ('</think>' in s) }}{{ messages[-1].content.split('</think>')[-1].lstrip('\n') if messages else '' }}
{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ ', '.join(['a', 'b']) }}{{ 'x' ~ 1 ~ 2.0 }}{{ [1, 2] == [1, 2] }}{{ {'a': 1} == {'a': 1.0} }}{{ 'b' > 'a' }}{{ [1, 2] < [1, 3] }}
{% generation %}{% set z = 1 %}{{ n }}{% endgeneration %}{{ z is defined }}
{{ messages | tojson }}{{ missing | length }}{% for a in missing %}x{% endfor %}{{ loop is defined }}
{{ n + x }}
{{ missing.attr }}
{{ none.attr }}
{{ none.attr.more }}
{{ raise_exception('no: ' ~ n) }}
{{ 1 // 0 }}
{{ missing() }}
{{ n[0] }}|{{ n.foo }}|{{ s.foo }}|{{ messages.foo }}
{{ 'a' + 1 }}
{{ missing + 'a' }}
{{ n < s }}
'''.strip("\n").split("\n")

# White space: every combination of signs and surroundings.
LAYOUT = ["a {%s if true %s} b {%s endif %s} c" % s for s in itertools.product(["%", "%-", "%+"], ["%", "-%", "+%"], repeat=2)]
LAYOUT += [p + "{%s if true %s}" % s + q + "{% endif %}z" for s in itertools.product(["%", "%-", "%+"], ["%", "-%", "+%"])
           for p in ["", " ", "x\n ", "\n\n  ", "x "] for q in ["", "\n", " \n", "\n\n y"]]
LAYOUT += [p + "{%s n %s}" % s + q for s in itertools.product(["{", "{-"], ["}", "-}"]) for p in ["", " ", "x\n "]
           for q in ["", "\n", " \nq", "\n\n"]]
LAYOUT += [p + "{%s c %s}" % s + q for s in itertools.product(["#", "#-", "#+"], ["#", "-#", "+#"])
           for p in ["", " ", "x\n ", "x "] for q in ["", "\n", " \nq", "\n\n"]]
LAYOUT += ["a\n  {%- raw %}\n {{ x }} \n{%- endraw %}\nb\n", "a\n  {% raw -%}\n {{ x }} \n  {% endraw -%}\n b\n\n",
           "a\r\nb\rc\r\n", "{% for i in range(2) %}\n  {{ i }}\n{% endfor %}\n\nend\n", "a\n", "a\n\n", "\n",
           "{%- set x = 1 -%}\n\n {{- x -}} \n z", "  {# c #}  {% if true %} y{% endif %}", "{{ {'a': {'b': 1}} }}",
           "{{ '}}' }}{{ \"%}\" }}", "\u00a0{%- if true %}\u2003x{% endif %}", "\u2003{% if true %}x{% endif %}"]

# What JSON of Python has and 64 bits have not.
NUMBERS = """{{ n }}|{{ d }}|{{ d | tojson }}|{{ n | tojson }}|{{ n is number }}{{ n is string }}{{ n is mapping }}{{ n is none }}{{ n is defined }}
{{ n == n }}{{ n == 1 }}{{ n != n }}{{ 'yes' if n else 'no' }}{{ n ~ 'x' }}{{ n is integer }}{{ n is float }}""".split("\n")


def chatml(context):
    """The format, told apart from any template."""
    def calls(m):
        given = [c.get("function", c) for c in m.get("tool_calls", [])]
        each = [json.dumps({"name": c["name"], "arguments": c["arguments"]}, ensure_ascii=False) for c in given]
        return "\n".join(["<tool_call>\n%s\n</tool_call>" % c for c in each])

    def said(m):
        return "\n".join(part for part in (m["content"], calls(m)) if part)

    text = "".join(f"<|im_start|>{m['role']}\n{said(m)}<|im_end|>\n" for m in context["messages"])
    return {"text": text + "<|im_start|>assistant\n" * context["add_generation_prompt"]}


def llama3(context):
    if any("tool_calls" in m for m in context["messages"]):
        return {"error": "it has no form for tool calls"}
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    text = "".join(head.format(m["role"]) + m["content"].strip() + "<|eot_id|>" for m in context["messages"])
    return {"text": "<|begin_of_text|>" + text + head.format("assistant") * context["add_generation_prompt"]}


def conversations(rng, count):
    """Conversations of all shapes: with and without system, tools, tool calls, odd text."""
    texts = ["Hi", "", " spaced \n", "Grüße \U0001f600", "a\nb\n\nc", "\"quoted\" 'single' \\ back", "<|im_end|>", "数学", "x" * 300,
             "tab\t\u00a0\u2028end", "{{ n }} {% if %}"]
    call = {"type": "function", "function": {"name": "f", "arguments": {"city": "Köln", "n": [1, 2.5, None, True], "o": {"z": "\n"}}}}
    tool = {"type": "function", "function": {"name": "f", "description": "d \"e\" <é>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    for _ in range(count):
        messages = []
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": rng.choice(texts)})
        for _ in range(rng.randint(0 if messages else 1, 5)):
            messages.append({"role": "user", "content": rng.choice(texts)})
            kind = rng.random()
            if kind < 0.2:
                calls = [call] * rng.randint(1, 2)
                if rng.random() < 0.3:
                    calls = [c["function"] for c in calls]
                messages.append({"role": "assistant", "content": rng.choice(texts), "tool_calls": calls})
                messages += [{"role": "tool", "content": rng.choice(texts)} for _ in calls]
                messages.append({"role": "assistant", "content": rng.choice(texts)})
            elif kind < 0.9:
                messages.append({"role": "assistant", "content": rng.choice(texts)})
        yield {"messages": messages, "tools": rng.choice([None, None, [tool], [tool, tool]]),
               "add_generation_prompt": rng.random() < 0.5}


def reference(template, context):
    try:
        return {"text": _compile_jinja_template(template).render(**context)}
    except Exception as error:  # any refusal counts as one
        return {"error": f"{type(error).__name__}: {error}"}


def spans(template, context):
    """What transformers says the model generates, in bytes."""
    context = {k: v for k, v in context.items() if k != "messages"} | {"conversations": [context["messages"]]}
    text, ranges = render_jinja_template(chat_template=template, return_assistant_tokens_mask=True, **context)
    return [[len(text[0][:a].encode()), len(text[0][:b].encode())] for a, b in ranges[0] if a < b]


MARKED = """{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>{% endgeneration %}
{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def main():
    render = Renderer(sys.argv[1])
    shared = sys.argv[2] if len(sys.argv) > 2 else "../shared/data"
    rng = random.Random(5)
    failures = checked = 0

    def compare(what, template, context, want):
        nonlocal failures, checked
        got = render(template, context)
        checked += 1
        if got.get("text") != want.get("text"):
            failures += 1
            if failures <= 20:
                print(f"{what}: differs\n  template {template!r}\n  context  {json.dumps(context)[:300]}\n  jinja2   {want}\n  ours     {got}")

    for template in CONSTRUCTS + LAYOUT:
        for context in CONTEXTS:
            compare("construct", template, context, reference(template, context))
    for context in conversations(rng, 200):
        compare("generation", MARKED, context, reference(MARKED, context))
        checked += 1
        if render(MARKED, context).get("spans") != spans(MARKED, context):
            failures += 1
            print("generation: other spans", context)
    for context in conversations(rng, 300):
        compare("chatml", "chatml", context, chatml(context))
        compare("llama3", "llama3", context, llama3(context))
    for number in (2 ** 64, -2 ** 63 - 1, 10 ** 400, float("nan"), float("inf"), -float("inf")):
        # Our reader of JSON lines hands them on so.
        marked = {"n": {"\ufdd0": json.dumps(number)}, "d": {"k": [{"\ufdd0": json.dumps(number)}]}}
        for template in NUMBERS:
            compare("numbers", template, marked, reference(template, {"n": number, "d": {"k": [number]}}))

    folder = os.path.join(shared, "tokenizers", "qwen2.5")
    if os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(folder)
        template = json.load(open(os.path.join(folder, "tokenizer_config.json")))["chat_template"]
        for context in conversations(rng, 1000):
            try:
                want = {"text": tokenizer.apply_chat_template(context["messages"], tools=context["tools"], tokenize=False,
                                                              add_generation_prompt=context["add_generation_prompt"])}
            except Exception as error:
                want = {"error": str(error)}
            compare("qwen2.5", template, context, want)
            if not context["tools"] and all(m["role"] != "tool" and "tool_calls" not in m for m in context["messages"]):
                compare("qwen", "qwen", context, want)
    else:
        print(f"skipped: Qwen2.5's own template ({folder} is not there)")
    print(f"template: {checked} comparisons, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
