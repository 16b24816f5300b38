/* SPDX-License-Identifier: MIT */
#include "base/io.h"
