/* jinja_builtin.c -- templates for the formats that many models share, in words of our own.
 *
 *   chatml  <|im_start|>role, line end, content, <|im_end|>, line end; a tool call stands behind the
 *           content as <tool_call>, line end, {"name": ..., "arguments": ...}, line end, </tool_call>
 *   qwen    the same, with the system message that Qwen2.5 gets when there is none
 *   llama3  <|begin_of_text|>, then <|start_header_id|>role<|end_header_id|>, an empty line,
 *           content without white space around it, <|eot_id|>; no tool calls */
#include "jinja/jinja.h"

#define CHATML_MESSAGES                                                                \
    "{%- for message in messages -%}\n"                                                \
    "{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content -}}\n"                \
    "{%- for tool_call in message.tool_calls or [] -%}\n"                              \
    "{%- set call = tool_call.function or tool_call -%}\n"                             \
    "{%- set given = call.arguments -%}\n"                                             \
    "{{- '\\n' if message.content or not loop.first -}}\n"                             \
    "{{- '<tool_call>\\n{\"name\": ' ~ call.name | tojson ~ ', \"arguments\": ' -}}\n" \
    "{{- (given if given is string else given | tojson) ~ '}\\n</tool_call>' -}}\n"    \
    "{%- endfor -%}\n"                                                                 \
    "{{- '<|im_end|>\\n' -}}\n"                                                        \
    "{%- endfor -%}\n"                                                                 \
    "{%- if add_generation_prompt -%}\n"                                               \
    "{{- '<|im_start|>assistant\\n' -}}\n"                                             \
    "{%- endif -%}\n"

static const struct {
    const char *name, *text;
} builtin[] = {
    {"chatml", CHATML_MESSAGES},
    {"qwen", "{%- if messages[0].role != 'system' -%}\n"
             "{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
             "assistant.<|im_end|>\\n' -}}\n"
             "{%- endif -%}\n" CHATML_MESSAGES},
    {"llama3", "{{- '<|begin_of_text|>' -}}\n"
               "{%- for message in messages -%}\n"
               "{{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' -}}\n"
               "{%- if message.tool_calls -%}\n"
               "{{- raise_exception('llama3 has no form for tool calls: name auto or a .jinja "
               "file') -}}\n"
               "{%- endif -%}\n"
               "{{- message.content | trim ~ '<|eot_id|>' -}}\n"
               "{%- endfor -%}\n"
               "{%- if add_generation_prompt -%}\n"
               "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n"
               "{%- endif -%}\n"},
};

const char *ls_jinja_builtin(const char *name)
{
    for (size_t i = 0; i < LS_COUNT(builtin); i++)
        if (strcmp(builtin[i].name, name) == 0)
            return builtin[i].text;
    return NULL;
}
