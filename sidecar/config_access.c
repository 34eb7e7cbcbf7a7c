/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "access": who may call reading and changing methods.  Users and groups are
 * numbers or names; names are looked up here, once.
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>

#include "config_parts.h"

#define LOOKUP_BYTES_MAX (1u << 20)

enum id_kind { ID_USER, ID_GROUP };

/* One try with `size` bytes of scratch: 0, ENOENT or an errno. */
static int try_lookup(enum id_kind kind, const char *name, size_t size,
		      uint32_t *id)
{
	struct passwd user, *found_user = NULL;
	struct group group, *found_group = NULL;
	char *scratch = malloc(size);
	int error;

	if (!scratch)
		return ENOMEM;
	if (kind == ID_USER)
		error = getpwnam_r(name, &user, scratch, size, &found_user);
	else
		error = getgrnam_r(name, &group, scratch, size, &found_group);
	if (found_user)
		*id = user.pw_uid;
	else if (found_group)
		*id = group.gr_gid;
	else if (!error)
		error = ENOENT;
	free(scratch);
	return error;
}

/* A large group needs more scratch than the first guess. */
static int lookup(enum id_kind kind, const char *name, uint32_t *id)
{
	size_t size = 4096;
	int error;

	do {
		error = try_lookup(kind, name, size, id);
		size *= 4;
	} while (error == EINTR ||
		 (error == ERANGE && size <= LOOKUP_BYTES_MAX));
	return error;
}

static void read_name(struct json_view *v, const char *where, json_t *value,
		      enum id_kind kind, uint32_t *id)
{
	const char *what = kind == ID_USER ? "user" : "group";
	const char *name = json_string_value(value);
	char fix[128];
	int error = lookup(kind, name, id);

	if (!error)
		return;
	if (error == ENOMEM) {
		config_no_memory(v);
		return;
	}
	snprintf(fix, sizeof(fix), "make the %s, or give its number", what);
	/* POSIX allows several answers for a name that is not there. */
	config_fault(v, where, fix, "there is no %s \"%s\"", what, name);
}

/* -1 as an id means "leave it" to chown and "nobody" to no one. */
static void read_id(struct json_view *v, const char *where, json_t *value,
		    enum id_kind kind, uint32_t *id)
{
	json_int_t number = json_integer_value(value);

	if (json_is_string(value))
		read_name(v, where, value, kind, id);
	else if (json_is_integer(value) && number >= 0 && number < UINT32_MAX)
		*id = (uint32_t)number;
	else
		config_fault(v, where,
			     kind == ID_USER ? "write a user's name or number"
					     : "write a group's name or number",
			     "must be a name or a number from 0 to %u",
			     UINT32_MAX - 1);
}

static uint32_t *read_ids(struct json_view *v, const char *key,
			  enum id_kind kind, size_t *count)
{
	json_t *array = json_view_array(v, key, 0, CONFIG_IDS_MAX);
	char where[32];
	uint32_t *ids;
	size_t i, n;

	if (!array)
		return NULL;
	n = json_array_size(array);
	ids = calloc(n ? n : 1, sizeof(*ids));
	if (!ids) {
		config_no_memory(v);
		return NULL;
	}
	for (i = 0; i < n && !v->failed; i++) {
		snprintf(where, sizeof(where), "%s[%zu]", key, i);
		read_id(v, where, json_array_get(array, i), kind, &ids[i]);
	}
	*count = n;
	return ids;
}

static void read_list(struct json_view *top, const char *key,
		      struct config_access *access)
{
	struct json_view v;

	if (!config_section_begin(top, &v, key))
		return;
	access->anyone = false;
	if (json_object_size(v.object) == 0)
		config_fault(top, key,
			     "add a list, an empty one for root and "
			     "engramd's user alone",
			     "has neither \"uids\" nor \"gids\"");
	access->uids = read_ids(&v, "uids", ID_USER, &access->num_uids);
	access->gids = read_ids(&v, "gids", ID_GROUP, &access->num_gids);
	config_section_end(top, &v);
}

void config_read_access(struct json_view *top, struct config *config)
{
	struct json_view v;

	config->read.anyone = true;
	config->change.anyone = false;
	if (!config_section_begin(top, &v, "access"))
		return;
	read_list(&v, "read", &config->read);
	read_list(&v, "change", &config->change);
	config_section_end(top, &v);
}
