/* SPDX-License-Identifier: MIT */
#include "bake/vm.h"
