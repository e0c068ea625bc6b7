/* device_contract.h -- what every provider of device collectives must do, on any device: known
 * numbers in every kind of call, type and shape, against a plain loop (comm/coll_case.h). */
#pragma once
#include "comm/device/device_comm.h"

/* All ranks of comm, each with a device of its own. */
void ls_device_contract(ls_comm *comm, ls_device *device, const char *provider);
