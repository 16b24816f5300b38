/* SPDX-License-Identifier: MIT */
#include "base/log.h"
