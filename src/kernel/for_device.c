/* for_device.c -- the kernels that belong to a device.
 *
 * A GPU's plugin brings its table as an untyped pointer, since the device room does not know what a
 * kernel is; the stamp says whether both sides mean the same structs by it. */
#include "kernel/kernel.h"

#include "device/plugin.h"
#include "kernel/experts.h"

ls_status ls_kernel_for(const ls_device *device, const char *name, const ls_kernels **kernels_out)
{
    const ls_plugin *plugin = ls_device_plugin(device);
    const ls_kernels *kernels = plugin ? plugin->kernels : NULL;
    ls_status st;

    if (!plugin)
        return ls_kernel_pick(name, kernels_out);
    if (strcmp(name, "auto") != 0 && strcmp(name, plugin->kind) != 0)
        return ls_fail(LS_EUSAGE, "the \"%s\" kernels do not run on device \"%s\"", name,
                       plugin->kind);
    if (!kernels || plugin->kernels_stamp != ls_kernel_stamp() ||
        (kernels->experts && kernels->experts->stamp != ls_experts_stamp())) {
        st = ls_fail(LS_EUSAGE, "the \"%s\" plugin is built for other kernels than this program",
                     plugin->kind);
        ls_err_hint("Build both from the same source: run \"make\" and \"make cuda\".");
        return st;
    }
    *kernels_out = kernels;
    return LS_OK;
}
