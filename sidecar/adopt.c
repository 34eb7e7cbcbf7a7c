/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "adopt.h"
#include "clock.h"
#include "failpoint.h"
#include "log.h"
#include "numa.h"

struct left {
	struct engram_segment_entry *entries;
	size_t count;
};

static bool is_of(const struct engram_segment_entry *entry, const char *table)
{
	return !entry->control && !strcmp(entry->table, table);
}

bool adopt_has_left(const struct engram_backing *backing, const char *instance,
		    const char *table)
{
	struct engram_error err;
	struct left left = {0};
	bool found = false;

	if (engram_segment_list(backing, instance, &left.entries, &left.count,
				&err)) {
		log_failure(LOG_WARN, "segments can not be listed", &err);
		return false;
	}
	for (size_t i = 0; i < left.count; i++)
		found |= is_of(&left.entries[i], table) &&
			 !left.entries[i].temporary;
	free(left.entries);
	return found;
}

/* The newest below `limit`, or 0. */
static uint64_t newest(const struct left *left, const char *table,
		       uint64_t limit)
{
	uint64_t best = 0;

	for (size_t i = 0; i < left->count; i++) {
		const struct engram_segment_entry *entry = &left->entries[i];

		if (is_of(entry, table) && !entry->temporary &&
		    entry->generation < limit && entry->generation > best)
			best = entry->generation;
	}
	return best;
}

/* What this process, or the machine, was short of; with more of it the same
 * segments are good. */
static const char *lacking(const struct engram_error *err)
{
	switch (err->sys_errno) {
	case EMFILE:
		return "raise LimitNOFILE= of the unit (RLIMIT_NOFILE)";
	case ENFILE:
		return "raise fs.file-max";
	case ENOMEM:
	case EAGAIN:
	case ENOBUFS:
		return "free some memory, or raise RLIMIT_AS and "
		       "vm.max_map_count";
	default:
		return NULL;
	}
}

static enum engram_status adopt_layer(const struct load *load,
				      const struct engram_segment_spec *spec,
				      struct generation *gen,
				      struct generation_layer *layer,
				      struct engram_error *err)
{
	const struct engram_backing backing =
		numa_backing_of(&load->backing, layer->replica);
	enum engram_status status;
	char name[256];

	layer->layer_id = spec->head.layer_id;
	engram_segment_copy_name(name, spec->instance, spec->table,
				 layer->layer_id, gen->number, layer->replica);
	status = engram_segment_adopt(&backing, name, &layer->writer, err);
	if (status)
		return status;
	generation_count_layer(gen, layer);
	status = FAILPOINT_STATUS(adopt_mapped, err);
	if (!status)
		status = engram_segment_compare(layer->header, spec, err);
	if (status)
		engram_error_context(err, "%s", name);
	return status;
}

/* Of bytes that are not the same one can not make up for the other. */
static enum engram_status check_same(const struct generation *gen,
				     const struct generation_layer *layers,
				     struct engram_error *err)
{
	const struct generation_layer *whole = generation_whole(gen);

	for (uint32_t i = 0; i < gen->num_layers; i++) {
		if (!memcmp(whole[i].header->content_id,
			    layers[i].header->content_id,
			    sizeof(layers[i].header->content_id)))
			continue;
		return engram_error_set(err, ENGRAM_EDAMAGED,
					"layer %d has other contents than the "
					"copy before",
					(int)layers[i].layer_id);
	}
	return ENGRAM_OK;
}

/* All of its layers, or none: then what it was is removed, and made anew. */
static enum engram_status adopt_copy(
	const struct load *load, const struct engram_segment_spec *const *specs,
	struct generation *gen, struct generation_layer *layers,
	struct engram_error *err)
{
	enum engram_status status = ENGRAM_OK;
	uint32_t i;

	for (i = 0; i < gen->num_layers && !status; i++)
		status = adopt_layer(load, specs[i], gen, &layers[i], err);
	if (!status)
		status = check_same(gen, layers, err);
	for (i = 0; i < gen->num_layers && status; i++) {
		if (layers[i].header)
			gen->bytes -= layers[i].header->total_bytes;
		engram_segment_leave(layers[i].writer);
		layers[i].writer = NULL;
		layers[i].header = NULL;
	}
	return status;
}

/* One copy is enough: the others are made of it. */
static enum engram_status adopt_copies(
	const struct load *load, const struct engram_segment_spec *const *specs,
	struct generation *gen, struct engram_error *err)
{
	struct engram_error first;
	enum engram_status status;
	uint32_t copy;

	engram_error_clear(&first);
	for (copy = 0; copy < gen->num_copies; copy++) {
		status = adopt_copy(load, specs, gen,
				    generation_copy(gen, copy), err);
		if (status && lacking(err))
			return status;
		if (status && !first.status)
			first = *err;
	}
	if (!generation_whole(gen)) {
		*err = first;
		return first.status;
	}
	if (first.status)
		log_failure(LOG_WARN, "a copy is not adopted", &first);
	return ENGRAM_OK;
}

static enum engram_status try_generation(
	const struct load *load, const struct engram_segment_spec *const *specs,
	uint32_t num_layers, uint64_t number, struct generation **out,
	struct engram_error *err)
{
	struct generation *gen =
		generation_new(number, num_layers, &load->backing);
	enum engram_status status = ENGRAM_OK;

	if (!gen)
		status = engram_error_sys(err, ENOMEM, "generation %" PRIu64,
					  number);
	else
		status = adopt_copies(load, specs, gen, err);
	if (!status)
		status = generation_identify(gen, err);
	if (!status) {
		gen->adopted = true;
		/* its readers have not come yet */
		gen->untracked_ns = clock_ns();
		FAILPOINT(adopt_taken);
		*out = gen;
		return ENGRAM_OK;
	}
	generation_leave(gen);
	return status;
}

static enum engram_status keep(struct engram_error *err)
{
	engram_error_context(err, "the table is in memory, but can not be "
				  "taken over");
	engram_error_fix(err, "%s, then load it again: it is kept until then",
			 lacking(err));
	log_failure(LOG_WARN, "segments are kept", err);
	return err->status;
}

static bool is_adopted(const struct engram_segment_entry *entry,
		       const struct generation *gen)
{
	if (!gen || entry->temporary || entry->generation != gen->number)
		return false;
	for (uint32_t i = 0; i < gen->num_segments; i++) {
		const struct generation_layer *layer = &gen->layers[i];

		if (layer->writer && layer->layer_id == entry->layer_id &&
		    layer->replica == entry->replica)
			return true;
	}
	return false;
}

static void remove_others(const struct load *load, const struct left *left,
			  const struct generation *adopted)
{
	const char *table = load->spec->config.name;
	struct engram_error err;

	for (size_t i = 0; i < left->count; i++) {
		const struct engram_segment_entry *entry = &left->entries[i];

		if (!is_of(entry, table) || is_adopted(entry, adopted))
			continue;
		log_info("removing segment", LOG_S("name", entry->name),
			 LOG_U("bytes", entry->bytes));
		if (engram_segment_remove(&load->backing, entry->name, &err))
			log_failure(LOG_WARN, "segment not removed", &err);
	}
}

static void refuse(struct engram_error *err)
{
	/* An upgrade is the one reason that nobody has changed anything. */
	const bool upgraded = err->status == ENGRAM_EVERSION;

	if (upgraded)
		engram_error_set(err, ENGRAM_EVERSION,
				 "a reload is needed, the ABI changed from "
				 "version %" PRIu64 " to %" PRIu64,
				 err->available, err->needed);
	log_failure(upgraded ? LOG_WARN : LOG_INFO, "not adopted", err);
}

/* The newest that is what would be built now. */
static enum engram_status find_fit(
	const struct load *load, const struct engram_segment_spec *const *specs,
	uint32_t num_layers, const struct left *left, struct generation **out,
	struct engram_error *refused, struct engram_error *err)
{
	const char *table = load->spec->config.name;
	uint64_t number = UINT64_MAX;

	while ((number = newest(left, table, number)) != 0) {
		if (!try_generation(load, specs, num_layers, number, out, err))
			return ENGRAM_OK;
		if (lacking(err))
			return keep(err);
		refuse(err);
		if (!refused->status)
			*refused = *err;
	}
	return ENGRAM_OK;
}

enum engram_status adopt_generation(
	const struct load *load, const struct engram_segment_spec *const *specs,
	uint32_t num_layers, struct generation **out,
	struct engram_error *refused, struct engram_error *err)
{
	enum engram_status status;
	struct left left = {0};

	*out = NULL;
	engram_error_clear(refused);
	status = engram_segment_list(&load->backing, load->instance,
				     &left.entries, &left.count, err);
	if (status)
		return lacking(err) ? keep(err) : status;
	FAILPOINT(adopt_listed);
	status = find_fit(load, specs, num_layers, &left, out, refused, err);
	if (!status)
		remove_others(load, &left, *out);
	free(left.entries);
	FAILPOINT(adopt_cleaned);
	return status;
}
