/* shim.cuh -- the program's functions inside the plugin; see native.cuh. */
#pragma once
#include "device/plugin.h"

/* Everything of base and device that the plugin calls goes through host from now on. */
void ls_shim_load(const ls_plugin_host *host);
