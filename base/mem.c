/* SPDX-License-Identifier: MIT */
#include "base/mem.h"
