/* schema.h -- the option table as documents: JSON Schema for editors, Markdown for people. */
#pragma once
#include "base/str.h"

LS_C_BEGIN

/* A JSON Schema (draft 2020-12) of the run file. */
ls_status ls_schema_json(ls_str *out);

/* docs/reference/run-file.md. */
ls_status ls_schema_markdown(ls_str *out);

LS_C_END
