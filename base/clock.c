/* SPDX-License-Identifier: MIT */
#include "base/clock.h"
