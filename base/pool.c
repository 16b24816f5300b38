/* SPDX-License-Identifier: MIT */
#include "base/pool.h"
