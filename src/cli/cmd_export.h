/* cmd_export.h -- what export and merge share. */
#pragma once
#include "cli/command.h"
#include "hf/hf_export.h"

/* Read the flags below and --key into a job that says from and to, run it, and append what was done
 * to out. */
ls_status ls_cmd_export_run(const ls_args *args, ls_hf_export_args *job, ls_str *out);

#define LS_CMD_EXPORT_FLAGS                                                                        \
    {.name = "dtype",                                                                              \
     .value = "TYPE",                                                                              \
     .doc = "Type of the numbers in the files: f32, bf16 or f16; unless given, the type that the " \
            "model came with, or f32. Of a GGUF file: f16 unless given, also q8_0 or q4_0."},      \
    {                                                                                              \
        .name = "max-shard", .value = "SIZE",                                                      \
        .doc = "Largest size of one file, such as 500M; 5G unless given."                          \
    }
