/* SPDX-License-Identifier: MIT */
#include "base/proc.h"
