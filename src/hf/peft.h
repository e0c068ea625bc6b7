/* peft.h -- an adapter (LoRA, DoRA) as PEFT saves it: reading, and merging into the model it was trained beside.
 *
 *   adapter_config.json         its kind, alpha, the base model
 *   adapter_model.safetensors   base_model.model.MODULE.lora_A.weight [rank, inputs]
 *                               base_model.model.MODULE.lora_B.weight [outputs, rank]
 *                               base_model.model.MODULE.lora_magnitude_vector [outputs] (DoRA)
 *                               base_model.model.PARAMETER, trained as a whole (modules_to_save)
 *
 * Every tensor must have its place in the model; one that has none is an error. */
#pragma once
#include "base/str.h"
#include "hf/loaded_model.h"

LS_C_BEGIN

/* The base model that the adapter names: a path or a hub name, "" for none. Appended to base. */
ls_status ls_peft_base(const char *folder, ls_str *base);

/* Merge the adapter into the weights. LS_EUSAGE: not LoRA, or a kind of it that cannot be merged.
 * LS_EDATA: damaged, or of another model. *modules_out: weights that were changed. */
ls_status ls_peft_merge(const char *folder, ls_loaded_model *model, int *modules_out);

LS_C_END
